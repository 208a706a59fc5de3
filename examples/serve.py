"""A small engine that serves a model with random weights: pages, prefix cache, chunked prefill,
continuous batching, CUDA graphs, speculative verify, metrics, HTTP.

    python examples/serve.py --port 8000     # on the loopback: POST /generate, GET /metrics
    python examples/serve_load.py --help     # a load for it

On a GPU the model has the shape of Llama 3 8B; on the CPU it is a tiny one. --shape tells which.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import queue
import select
import socket
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import pyflash


class Shape(NamedTuple):
    layers: int
    d_model: int
    heads: int
    heads_kv: int
    d_head: int
    d_ff: int
    vocabulary: int
    context: int


SHAPES = {
    "tiny": Shape(2, 64, 4, 2, 16, 128, 97, 512),
    "8b": Shape(32, 4096, 32, 8, 128, 14336, 128256, 16384),
}


class Model:
    """A Llama with random weights. attend(layer, q, k, v) is its attention, of all rows at once."""

    def __init__(self, shape: Shape, device: torch.device, seed: int = 0):
        self.shape, self.device = shape, device
        on_gpu = device.type == "cuda"
        self.dtype = torch.bfloat16 if on_gpu else torch.float32
        self.attention_dtype = torch.bfloat16 if on_gpu else torch.float16
        generator = torch.Generator(device).manual_seed(seed)

        def weights(*size: int) -> Tensor:
            x = torch.empty(size, dtype=self.dtype, device=device)
            return x.normal_(0, size[0] ** -0.5, generator=generator)

        d, n_qkv = shape.d_model, (shape.heads + 2 * shape.heads_kv) * shape.d_head
        self.embedding = weights(shape.vocabulary, d) * shape.vocabulary**0.5
        sizes = {"qkv": (d, n_qkv), "o": (shape.heads * shape.d_head, d)}
        sizes |= {"gate_up": (d, 2 * shape.d_ff), "down": (shape.d_ff, d)}
        self.layers = [
            {name: weights(*size) for name, size in sizes.items()} for _ in range(shape.layers)
        ]
        self.unembedding = weights(d, shape.vocabulary)
        frequencies = 5e5 ** -(torch.arange(0, shape.d_head, 2, device=device) / shape.d_head)
        angles = torch.arange(shape.context, device=device)[:, None] * frequencies
        self.rotations = torch.cat([angles.cos(), angles.sin()], -1).to(self.dtype)

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Any, rows: Any = None) -> Tensor:
        """The token that follows each of the rows, or each of those asked for."""
        shape = self.shape
        cos, sin = self.rotations[positions][:, None].chunk(2, -1)
        x = self.embedding[tokens]
        for i, layer in enumerate(self.layers):
            qkv = (_norm(x) @ layer["qkv"]).unflatten(-1, (-1, shape.d_head))
            q, k, v = qkv.split([shape.heads, shape.heads_kv, shape.heads_kv], 1)
            q, k = (_rotated(part, cos, sin) for part in (q, k))
            q, k, v = (part.to(self.attention_dtype).contiguous() for part in (q, k, v))
            x = x + attend(i, q, k, v).flatten(1).to(self.dtype) @ layer["o"]
            gate, up = (_norm(x) @ layer["gate_up"]).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ layer["down"]
        return _norm(x if rows is None else x[rows]) @ self.unembedding


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def digest_of(before: bytes, tokens: list[int]) -> bytes:
    return hashlib.sha256(before + repr(tokens).encode()).digest()


class Pages:
    """The numbers of pages: free, used, or kept. A kept page is nobody's, and full of keys that a
    later prompt may begin with; it is found by the digest of all tokens up to its end."""

    def __init__(self, number: int, size: int):
        self.number, self.size = number, size
        self.free = list(range(number))
        self.users = [0] * number
        self.kept: OrderedDict[int, None] = OrderedDict()  # the oldest first
        self.page_of: dict[bytes, int] = {}
        self.digest_of: dict[int, bytes] = {}

    @property
    def n_available(self) -> int:
        return len(self.free) + len(self.kept)

    def take(self) -> int:
        if self.free:
            page = self.free.pop()
        else:
            page, _ = self.kept.popitem(last=False)
            del self.page_of[self.digest_of.pop(page)]
        self.users[page] = 1
        return page

    def give_back(self, page: int) -> None:
        self.users[page] -= 1
        if self.users[page] == 0:
            if page in self.digest_of:
                self.kept[page] = None
            else:
                self.free.append(page)

    def publish(self, page: int, digest: bytes) -> None:
        """The page is full, and will not be written again."""
        if digest not in self.page_of and page not in self.digest_of:
            self.page_of[digest], self.digest_of[page] = page, digest

    def share(self, digest: bytes) -> int | None:
        page = self.page_of.get(digest)
        if page is not None:
            self.users[page] += 1
            self.kept.pop(page, None)
        return page


@dataclass(eq=False)
class Request:
    """`tokens` has the prompt and what follows; keys of the first n_keys of them are in pages."""

    prompt: list[int]
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # of its full pages that are published
    n_keys: int = 0
    is_cancelled: bool = False
    sent: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)
    came: float = field(default_factory=time.perf_counter)
    last: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def n_left(self) -> int:
        return self.max_tokens - (len(self.tokens) - len(self.prompt))


class Work(NamedTuple):
    """A step runs these `tokens` of a request, of which the last n_drafted are guesses."""

    request: Request
    tokens: list[int]
    n_drafted: int

    @property
    def is_last(self) -> bool:
        request = self.request
        return request.n_keys + len(self.tokens) >= len(request.tokens)


class Group(NamedTuple):  # sequences that one call of attention serves
    rows: slice
    sequences: slice
    starts: Tensor
    max_seqlen_q: int


class Batch(NamedTuple):
    tokens: Tensor
    positions: Tensor
    starts: Tensor
    lengths: Tensor
    table: Tensor
    rows: Tensor | None
    groups: tuple[Group, ...]


COUNTS = ("steps", "tokens", "prefill_tokens", "prefix_hit_tokens", "finished", "cancelled")
COUNTS += ("preempted", "drafted", "accepted", "graph_replays")


class Metrics:
    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        names = ("first_token", "between_tokens", "step", "host")
        self.times: dict[str, deque[float]] = {name: deque(maxlen=4096) for name in names}

    def page(self, pages: Pages) -> str:
        lines = [f"pyflash_{name}_total {n}" for name, n in self.counts.items()]
        used = pages.number - pages.n_available
        for state, n in (("free", len(pages.free)), ("kept", len(pages.kept)), ("used", used)):
            lines.append(f'pyflash_pages{{state="{state}"}} {n}')
        for name, part in ((name, part) for name in self.times for part in (0.5, 0.99)):
            seconds = quantile(list(self.times[name]), part)
            lines.append(f'pyflash_{name}_seconds{{quantile="{part}"}} {seconds:.6f}')
        return "\n".join(lines) + "\n"


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)] if values else 0.0


class Engine:
    """Takes requests, and makes steps. One thread steps, any may submit."""

    def __init__(
        self,
        model: Model,
        num_pages: int,
        page_size: int = 16,
        max_running: int = 64,
        max_tokens: int = 512,
        max_draft: int = 3,
        use_graphs: bool | None = None,
    ):
        shape, self.model = model.shape, model
        self.pages = Pages(num_pages, page_size)
        size = (2, shape.layers, num_pages, page_size, shape.heads_kv, shape.d_head)
        caches = torch.zeros(size, dtype=model.attention_dtype, device=model.device)
        self.k_caches, self.v_caches = caches.unbind(0)
        self.max_running, self.max_tokens = max_running, max(max_tokens, max_running)
        self.max_draft = max_draft
        self.width = -(-shape.context // page_size)
        self.inbox: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order in which they came
        self.metrics = Metrics()
        on_gpu = model.device.type == "cuda"
        self.use_graphs = on_gpu if use_graphs is None else use_graphs
        self.use_schedule = False  # one a step, for all layers
        self.graphs: dict[int, tuple[Any, Batch, Tensor]] = {}

    def submit(self, request: Request) -> None:
        """From any thread. Raises ValueError for a request that can never be served."""
        n = len(request.prompt) + request.max_tokens
        room = min(self.model.shape.context, self.pages.number * self.pages.size)
        if not request.prompt or request.max_tokens < 1 or n > room:
            asked = f"{len(request.prompt)} + {request.max_tokens} tokens"
            raise ValueError(f"{asked}: expected 1 or more of each, {room} at most together")
        if not all(0 <= token < self.model.shape.vocabulary for token in request.prompt):
            raise ValueError(f"expected tokens below {self.model.shape.vocabulary}")
        self.inbox.put(request)

    def step(self) -> bool:
        """Runs some tokens of some requests. False: there is nothing to do."""
        begin = time.perf_counter()
        while not self.inbox.empty():
            self.waiting.append(self.inbox.get())
        self._drop_cancelled()
        work = self._plan()
        if not work:
            return False
        planned = time.perf_counter()
        # Few queries of many sequences, and many queries of few: a kernel for each.
        work.sort(key=lambda w: len(w.tokens) > 1 + self.max_draft)
        batch = self._batch(work)
        self.metrics.times["host"].append(time.perf_counter() - planned)
        following = (self._replayed(batch) or self._run)(batch).tolist()
        self.metrics.counts["steps"] += 1
        first = 0
        for w in work:
            last = first + (1 + w.n_drafted if w.is_last else 0)
            self._accept(w, following[first:last])
            first = last
        self.metrics.times["step"].append(time.perf_counter() - begin)
        return True

    def _drop_cancelled(self) -> None:
        for request in [r for r in (*self.running, *self.waiting) if r.is_cancelled]:
            (self.running if request in self.running else self.waiting).remove(request)
            self._end(request, "cancelled")

    def _end(self, request: Request, how: str) -> None:
        self._give_back(request)
        self.metrics.counts[how] += 1
        request.sent.put(None)

    def _give_back(self, request: Request) -> None:
        for page in request.pages:
            self.pages.give_back(page)
        request.pages, request.digests, request.n_keys = [], [], 0

    def _plan(self) -> list[Work]:
        work, budget = [], self.max_tokens
        for i, request in enumerate(self.running):  # the last ones may leave it meanwhile
            others = len(self.running) - i - 1  # each may have a token
            work += self._work_of(request, budget - others)
            budget -= len(work[-1].tokens) if work and work[-1].request is request else 0
        while self.waiting and budget > 0 and len(self.running) < self.max_running:
            request = self.waiting[0]
            self._share_prefix(request)
            n = min(len(request.tokens) - request.n_keys, budget)
            if self._n_missing(request, n) > self.pages.n_available:
                self._give_back(request)
                break
            self.metrics.counts["prefix_hit_tokens"] += request.n_keys
            self.running.append(self.waiting.popleft())
            work += self._work_of(request, budget)
            budget -= len(work[-1].tokens)
        return work

    def _work_of(self, request: Request, budget: int) -> list[Work]:
        pending = request.tokens[request.n_keys :][: max(budget, 1)]
        if not self._reserve(request, len(pending)):
            return []
        draft: list[int] = []
        if len(pending) == 1 and request.n_keys + 1 == len(request.tokens):
            n = min(self.max_draft, budget - 1, request.n_left - 1)
            draft = self._guess(request.tokens)[: max(n, 0)]
            if self._n_missing(request, 1 + len(draft)) > self.pages.n_available:
                draft = []
            self._reserve(request, 1 + len(draft))
        return [Work(request, pending + draft, len(draft))]

    def _guess(self, tokens: list[int]) -> list[int]:
        """What followed the last two tokens when they came before."""
        for i in range(len(tokens) - 3, max(len(tokens) - 130, -1), -1):
            if tokens[i : i + 2] == tokens[-2:]:
                return tokens[i + 2 : i + 2 + self.max_draft]
        return []

    def _share_prefix(self, request: Request) -> None:
        size, digest = self.pages.size, b""
        for begin in range(0, len(request.tokens) - size, size):  # one token stays to be run
            digest = digest_of(digest, request.tokens[begin : begin + size])
            if (page := self.pages.share(digest)) is None:
                break
            request.pages.append(page)
            request.digests.append(digest)
        request.n_keys = len(request.pages) * size

    def _n_missing(self, request: Request, n: int) -> int:
        return max(-(-(request.n_keys + n) // self.pages.size) - len(request.pages), 0)

    def _reserve(self, request: Request, n: int) -> bool:
        """Pages for n more keys, or of the requests that came last. False: it is one of them."""
        for _ in range(self._n_missing(request, n)):
            while self.pages.n_available == 0:
                victim = self.running.pop()
                self._give_back(victim)
                self.waiting.appendleft(victim)
                self.metrics.counts["preempted"] += 1
                if victim is request:
                    return False
            request.pages.append(self.pages.take())
        return True

    def _batch(self, work: list[Work]) -> Batch:
        tokens, positions, starts, lengths, rows, tables = [], [], [0], [], [], []
        for w in work:
            n, n_keys = len(w.tokens), w.request.n_keys
            tokens += w.tokens
            positions += range(n_keys, n_keys + n)
            starts.append(starts[-1] + n)
            lengths.append(n_keys + n)
            rows += range(starts[-1] - 1 - w.n_drafted, starts[-1]) if w.is_last else ()
            tables.append(w.request.pages)
        width = max(map(len, tables))
        flat = [page for pages in tables for page in pages + [-1] * (width - len(pages))]
        n_few = sum(len(w.tokens) <= 1 + self.max_draft for w in work)
        relative = [start - starts[n_few] for start in starts[n_few:]]
        # One copy to the device.
        parts = (tokens, positions, starts, lengths, rows, relative, flat)
        whole = torch.tensor([x for part in parts for x in part], dtype=torch.int32)
        if self.model.device.type == "cuda":
            whole = whole.pin_memory().to(self.model.device, non_blocking=True)
        sizes = list(map(len, parts))
        tokens_, positions_, starts_, lengths_, rows_, relative_, flat_ = whole.split(sizes)
        groups = []
        for begin, end, of_group in ((0, n_few, starts_), (n_few, len(work), relative_)):
            if end > begin:
                longest = max(len(w.tokens) for w in work[begin:end])
                of_rows = slice(starts[begin], starts[end])
                of_group = of_group[: end - begin + 1]
                groups.append(Group(of_rows, slice(begin, end), of_group, longest))
        table = flat_.view(len(work), width)
        return Batch(tokens_, positions_, starts_, lengths_, table, rows_, tuple(groups))

    def _run(self, batch: Batch) -> Tensor:
        n_rows = len(batch.tokens)
        slots = pyflash.slots_of(batch.table, batch.lengths, batch.starts, self.pages.size, n_rows)
        calls = []
        for rows, sequences, starts, longest in batch.groups:
            inputs = (batch.table[sequences], batch.lengths[sequences])
            options: Any = {"causal": True, "cu_seqlens_q": starts, "max_seqlen_q": longest}
            if self.use_schedule and longest <= 1 + self.max_draft:
                of = (self.model.shape.heads, self.k_caches[0], *inputs)
                options["schedule"] = pyflash.schedule(*of, **options)
            calls.append((rows, inputs, options))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            caches, out = (self.k_caches[layer], self.v_caches[layer]), torch.empty_like(q)
            pyflash.append_kv(k, v, *caches, slots)
            for rows, inputs, options in calls:
                pyflash.attention_paged(q[rows], *caches, *inputs, out=out[rows], **options)
            return out

        return self.model(batch.tokens, batch.positions, attend, batch.rows).argmax(-1)

    def _replayed(self, batch: Batch) -> Any:
        """Runs a token of each sequence by a graph of a power of two of them; others are empty."""
        n = len(batch.lengths)
        if not self.use_graphs or len(batch.tokens) != n or len(batch.rows) != n:
            return None
        bucket = 1 << (n - 1).bit_length()
        if bucket not in self.graphs:
            self.graphs[bucket] = self._captured(bucket)
        graph, inputs, following = self.graphs[bucket]

        def replay(batch: Batch) -> Tensor:
            inputs.lengths.zero_()
            for name in ("tokens", "positions", "lengths"):
                getattr(inputs, name)[:n].copy_(getattr(batch, name))
            inputs.table[:n, : batch.table.shape[1]].copy_(batch.table)
            graph.replay()
            self.metrics.counts["graph_replays"] += 1
            return following[:n]

        return replay

    def _captured(self, bucket: int) -> tuple[Any, Batch, Tensor]:
        ints = {"dtype": torch.int32, "device": self.model.device}
        tokens, positions, lengths = (torch.zeros(bucket, **ints) for _ in range(3))
        starts = torch.arange(bucket + 1, **ints)
        table = torch.full((bucket, self.width), -1, **ints)
        group = Group(slice(0, bucket), slice(0, bucket), starts, 1)
        batch = Batch(tokens, positions, starts, lengths, table, None, (group,))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run(batch)  # libraries load, and allocate, before the capture
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            following = self._run(batch)
        return graph, batch, following

    def _accept(self, work: Work, following: list[int]) -> None:
        """following: the tokens behind the last one, and behind each of the draft."""
        request, counts, now = work.request, self.metrics.counts, time.perf_counter()
        counts["prefill_tokens"] += len(work.tokens) - 1 - work.n_drafted
        if not following:
            request.n_keys += len(work.tokens)
            self._publish(request)
            return
        draft = work.tokens[len(work.tokens) - work.n_drafted :]
        n_right = next((i for i, x in enumerate(draft) if x != following[i]), len(draft))
        new = following[: n_right + 1][: request.n_left]
        counts["drafted"] += len(draft)
        counts["accepted"] += n_right
        counts["tokens"] += len(new)
        # NOTE: keys of guesses that were wrong stay in pages until others are written there.
        request.n_keys = len(request.tokens) + len(new) - 1
        request.tokens += new
        times, is_first = self.metrics.times, request.last == 0.0
        gap = now - (request.came if is_first else request.last)
        times["first_token" if is_first else "between_tokens"].append(gap)
        request.last = now
        for token in new:
            request.sent.put(token)
        self._publish(request)
        if request.n_left == 0:
            self.running.remove(request)
            self._end(request, "finished")

    def _publish(self, request: Request) -> None:
        size = self.pages.size
        for i in range(len(request.digests), request.n_keys // size):
            before = request.digests[-1] if request.digests else b""
            digest = digest_of(before, request.tokens[i * size : (i + 1) * size])
            request.digests.append(digest)
            self.pages.publish(request.pages[i], digest)


# HTTP.


class Server(ThreadingHTTPServer):
    """POST /generate {"prompt": [tokens], "max_tokens": n} streams a line of JSON for each token;
    GET /metrics. Requests of clients that are gone are cancelled."""

    daemon_threads = True

    def __init__(self, engine: Engine, port: int):
        super().__init__(("127.0.0.1", port), Handler)
        self.engine, self.is_closed = engine, False
        self.stepper = threading.Thread(target=self._steps, daemon=True)
        self.stepper.start()

    def _steps(self) -> None:
        with torch.inference_mode():
            while not self.is_closed:
                if not self.engine.step():
                    time.sleep(0.0005)

    def close(self) -> None:
        self.is_closed = True
        self.stepper.join()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        engine = self.server.engine
        page = engine.metrics.page(engine.pages) if self.path == "/metrics" else ""
        self._answer(200 if page else 404, page)

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        try:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Request([int(x) for x in asked["prompt"]], int(asked["max_tokens"]))
            self.server.engine.submit(request)
        except (ValueError, KeyError, TypeError) as error:
            self._answer(400, json.dumps({"error": str(error)}))
            return
        try:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while (token := self._next(request)) is not None:
                line = json.dumps({"token": token}) + "\n"
                self.wfile.write(f"{len(line):x}\r\n{line}\r\n".encode())
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:
            request.is_cancelled = True
            self.close_connection = True

    def _next(self, request: Request) -> int | None:
        while True:
            try:
                return request.sent.get(timeout=0.2)
            except queue.Empty:
                readable, _, _ = select.select([self.connection], [], [], 0)
                if readable and not self.connection.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError("the client is gone") from None


def engine_of(shape: str | None, num_pages: int | None) -> Engine:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = shape or ("8b" if device.type == "cuda" else "tiny")
    large = shape != "tiny"
    sizes = {"max_running": 256, "max_tokens": 2048} if large else {}
    return Engine(Model(SHAPES[shape], device), num_pages or (16384 if large else 256), **sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--num-pages", type=int)
    parser.add_argument("--schedule", action="store_true", help="one a step, for all layers")
    asked = parser.parse_args()
    server = Server(engine_of(asked.shape, asked.num_pages), asked.port)
    server.engine.use_schedule = asked.schedule
    print(f"serving on http://127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.is_closed = True


if __name__ == "__main__":
    main()
