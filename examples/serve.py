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
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from serve_model import SHAPES, Model
from torch import Tensor

import pyflash

ints = partial(array, "i")  # slices and sums of which are copies of memory


def digest_of(before: bytes, tokens: array[int]) -> bytes:
    return hashlib.sha256(before + tokens.tobytes()).digest()


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
    tokens: array[int] = field(default_factory=ints)
    pages: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # of its full pages that are published
    n_keys: int = 0
    seat: int | None = None
    is_cancelled: bool = False
    sent: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)
    came: float = field(default_factory=time.perf_counter)
    last: float = 0.0

    def __post_init__(self) -> None:
        self.tokens.extend(self.prompt)

    def guess(self, n: int) -> array[int]:
        """What followed the last two tokens when they came before."""
        recent = (tokens := self.tokens[-130:]).tobytes()
        i, rest = divmod(recent.rfind(recent[-8:], 0, -4), 4)
        return tokens[i + 2 : i + 2 + n] if i >= 0 and rest == 0 else ints()

    @property
    def n_left(self) -> int:
        return self.max_tokens - (len(self.tokens) - len(self.prompt))


class Work(NamedTuple):  # of a step
    request: Request
    tokens: array[int]
    n_drafted: int  # of which that many are guesses
    is_last: bool  # no known token is behind them


class Seats:
    """What the device has of sequences that run: the token that each runs next, the number of its
    keys, and its pages. Their seats are 0 and up, without gaps. A step of one token each moves them
    on by itself on the device; what else happens is noted here, and sent once a step."""

    def __init__(self, number: int, width: int, device: torch.device):
        self.number, self.width = number, width
        self.taken: list[Request] = []
        self.notes: dict[int, int] = {}  # what is new, by its place in the state
        # Places: tokens, numbers of keys (-1: the seat is empty), tables, and a spare.
        self.spare = number * (2 + width)
        self.state = torch.zeros(self.spare + 1, dtype=torch.int32, device=device)
        self.tokens, self.n_keys, table, _ = self.state.split([number, number, number * width, 1])
        self.table = table.view(number, width)
        self.n_keys.fill_(-1)
        # NOTE: the device reads it while a step runs. Slices of views cost less than NumPy's calls.
        self.host = torch.zeros(2, 4 * number, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.host[0] = self.spare
        self.places, self.values = map(memoryview, self.host.numpy())
        self.nowhere = ints([self.spare]) * (4 * number)
        self.n_sent = 0
        self.received = torch.zeros_like(self.host, device=device)

    def take(self, request: Request) -> None:
        self.taken.append(request)
        self._seat(request, len(self.taken) - 1)

    def leave(self, request: Request) -> None:
        """The last one moves to its seat."""
        last, seat = self.taken.pop(), request.seat
        self.notes[self.number + last.seat] = -1
        request.seat = None
        if last is not request:
            self.taken[seat] = last
            self._seat(last, seat)

    def _seat(self, request: Request, seat: int) -> None:
        request.seat = seat
        self.note(request)
        self.notes.update(enumerate(request.pages, self._table_of(request)))

    def note(self, request: Request) -> None:
        self.notes[request.seat] = request.tokens[request.n_keys]
        self.notes[self.number + request.seat] = request.n_keys

    def note_page(self, request: Request, page: int) -> None:
        self.notes[self._table_of(request) + len(request.pages)] = page
        request.pages.append(page)

    def _table_of(self, request: Request) -> int:
        return 2 * self.number + request.seat * self.width

    def send(self) -> None:
        """Puts what is noted where `receive` finds it."""
        if not (notes := self.notes) and self.n_sent == 0:
            return
        if len(notes) > len(self.nowhere):  # long sequences moved
            self.receive_now(*torch.tensor([list(notes), list(notes.values())]))
            notes.clear()
        n = len(notes)
        self.places[:n], self.values[:n] = ints(list(notes)), ints(list(notes.values()))
        self.places[n : self.n_sent] = self.nowhere[n : self.n_sent]
        self.n_sent = n
        notes.clear()

    def receive(self) -> None:
        self.received.copy_(self.host, non_blocking=True)
        self.receive_now(*self.received)

    def receive_now(self, places: Tensor, values: Tensor) -> None:
        self.state[places] = values.to(self.state)


class Group(NamedTuple):  # sequences that one call of attention serves
    rows: slice
    sequences: slice
    starts: Tensor
    max_seqlen_q: int


COUNTS = ("steps", "tokens", "prefill_tokens", "prefix_hit_tokens", "finished", "cancelled")
COUNTS += ("preempted", "drafted", "accepted", "graph_replays")
TIMES = ("first_token", "between_tokens", "step", "host")


class Metrics:
    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.times: dict[str, deque[float]] = {name: deque(maxlen=4096) for name in TIMES}

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
        shape, on_gpu, self.model = model.shape, model.device.type == "cuda", model
        self.pages = Pages(num_pages, page_size)
        size = (2, shape.layers, num_pages, page_size, shape.heads_kv, shape.d_head)
        caches = torch.zeros(size, dtype=model.attention_dtype, device=model.device)
        self.k_caches, self.v_caches = caches.unbind(0)
        self.max_running, self.max_tokens = max_running, max(max_tokens, max_running)
        self.max_draft = max_draft
        self.seats = Seats(max_running, -(-shape.context // page_size), model.device)
        # What a step of many tokens sends; it is read when the step ends.
        most = 2 * (self.max_tokens + len(self.seats.state)) + 2 * max_running + 1
        self.host = torch.zeros(most, dtype=torch.int32, pin_memory=on_gpu)
        self.staging = memoryview(self.host.numpy()).cast("B")
        self.inbox: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order in which they came
        self.metrics = Metrics()
        self.use_graphs = on_gpu if use_graphs is None else use_graphs
        # One a step, for all layers; kernels of Hopper alone take it.
        self.use_schedule = not on_gpu or torch.cuda.get_device_capability(model.device)[0] == 9
        self.graphs, self.pool = dict[int, tuple[Any, Tensor]](), None  # None: each has its own

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
        for request in [r for r in (*self.running, *self.waiting) if r.is_cancelled]:
            (self.running if request in self.running else self.waiting).remove(request)
            self._end(request, "cancelled")
        work, longer = self._plan()
        if not work:
            return False
        planned = time.perf_counter()
        run = self._mixed(longer) if longer else self._decoding(len(work))
        self.metrics.times["host"].append(time.perf_counter() - planned)
        following = run().tolist()
        self.metrics.counts["steps"] += 1
        first = len(work)  # the first of the longer, behind a row of each seat
        for w in (*(w for w in work if len(w.tokens) == 1), *longer):
            at, is_longer = (first, True) if len(w.tokens) > 1 else (w.request.seat, False)
            new = following[at : at + 1 + w.n_drafted] if w.is_last else []
            self._accept(w, new)
            if is_longer or not new:
                first += len(new)
                self.seats.note(w.request)
        # When all others are as they are on the device.
        for request in [w.request for w in work if w.request.n_left == 0]:
            self.running.remove(request)
            self._end(request, "finished")
        self.metrics.times["step"].append(time.perf_counter() - begin)
        return True

    def _end(self, request: Request, how: str) -> None:
        self._give_back(request)
        self.metrics.counts[how] += 1
        request.sent.put(None)

    def _give_back(self, request: Request) -> None:
        if request.seat is not None:
            self.seats.leave(request)
        for page in request.pages:
            self.pages.give_back(page)
        request.pages, request.digests, request.n_keys = [], [], 0

    def _plan(self) -> tuple[list[Work], list[Work]]:
        """What to run, one token or more of each that has a seat, and what of that is more."""
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
            self.seats.take(request)
            work += self._work_of(request, budget)
            budget -= len(work[-1].tokens)
        return work, [w for w in work if len(w.tokens) > 1]

    def _work_of(self, request: Request, budget: int) -> list[Work]:
        n_keys, n_drafted = request.n_keys, 0
        pending = request.tokens[n_keys : n_keys + max(budget, 1)]
        if not self._reserve(request, len(pending)):
            return []
        is_last = n_keys + len(pending) == len(request.tokens)
        if is_last and len(pending) == 1:
            n = min(self.max_draft, budget - 1, request.n_left - 1)
            draft = request.guess(n) if n > 0 else ()
            if draft and self._n_missing(request, 1 + len(draft)) <= self.pages.n_available:
                self._reserve(request, 1 + len(draft))
                pending.extend(draft)
                n_drafted = len(draft)
        return [Work(request, pending, n_drafted, is_last)]

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
        while request.n_keys + n > len(request.pages) * self.pages.size:
            while self.pages.n_available == 0:
                victim = self.running.pop()
                self._give_back(victim)
                self.waiting.appendleft(victim)
                self.metrics.counts["preempted"] += 1
                if victim is request:
                    return False
            self.seats.note_page(request, self.pages.take())
        return True

    def _mixed(self, work: list[Work]) -> Any:
        """A step of many tokens of some, behind one of each seat, by one copy of what is new."""
        # Few queries of many sequences, and many queries of few: a kernel for each.
        most = 1 + self.max_draft
        work.sort(key=lambda w: len(w.tokens) > most)
        lengths, of, m = [len(w.tokens) for w in work], self.seats, len(self.seats.taken)
        n_few, starts, rows = sum(map(most.__ge__, lengths)), [*accumulate(lengths, initial=m)], []
        for (_, _, n_drafted, is_last), end in zip(work, starts[1:], strict=True):
            rows += range(end - 1 - n_drafted, end) if is_last else ()
        parts = (starts, rows, [w.request.seat for w in work], [*of.notes], [*of.notes.values()])
        sent = b"".join([*[w.tokens for w in work], *map(ints, parts)])
        self.staging[: len(sent)] = sent
        whole = self.host[: len(sent) // 4].to(self.model.device, non_blocking=True)
        of.notes.clear()
        width = max([len(r.pages) for r in of.taken])

        def run() -> Tensor:
            tokens_, starts_, rows_, seats_, *new = whole.split([starts[-1] - m, *map(len, parts)])
            of.receive_now(*new)
            every = torch.arange(starts[-1], dtype=torch.int32, device=whole.device)
            alone = of.n_keys[:m].index_fill(0, seats_.long(), -1)  # as if theirs were empty
            n_keys = torch.cat([alone, of.n_keys[seats_]])
            n_new = (starts_ := torch.cat([every[:m], starts_])).diff()
            shift = (n_keys - starts_[:-1]).repeat_interleave(n_new, output_size=starts[-1])
            n, end = m + n_few, starts[n_few]
            longest = max(lengths[:n_few], default=1)
            groups = [Group(slice(0, end), slice(0, n), starts_[: n + 1], longest)]
            if many := lengths[n_few:]:
                own = (slice(end, starts[-1]), slice(n, m + len(work)))
                groups.append(Group(*own, starts_[n:] - end, max(many)))
            table = torch.cat([of.table[:m, :width], of.table[:, :width][seats_]])
            tokens, rows_ = torch.cat([of.tokens[:m], tokens_]), torch.cat([every[:m], rows_])
            inputs = (tokens, (shift + every).clamp(min=0), starts_, n_keys + n_new, table)
            following = self._run(inputs, groups, rows_)
            of.tokens[:m] = following[:m]  # of the longer ones, too, but those are noted
            of.n_keys[:m] += alone >= 0
            return following

        return run

    def _decoding(self, n: int) -> Any:
        """A step of one token of each sequence, by a graph for a power of two of seats."""
        self.seats.send()
        bucket = min(1 << (n - 1).bit_length(), self.seats.number)
        with_graph = self._replayed if bucket in self.graphs else self._captured
        return partial(with_graph if self.use_graphs else self._decode, bucket)

    def _replayed(self, bucket: int) -> Tensor:
        graph, following = self.graphs[bucket]
        graph.replay()
        self.metrics.counts["graph_replays"] += 1
        return following

    def _decode(self, bucket: int) -> Tensor:
        """All that it reads and leaves is on the device. Seats may be empty."""
        seats = self.seats
        seats.receive()
        tokens, n_keys, table = (x[:bucket] for x in (seats.tokens, seats.n_keys, seats.table))
        starts = torch.arange(bucket + 1, dtype=torch.int32, device=table.device)
        inputs = (tokens, n_keys.clamp(min=0), starts, n_keys + 1, table)
        following = self._run(inputs, [Group(slice(0, bucket), slice(0, bucket), starts, 1)])
        tokens.copy_(following)
        n_keys += n_keys >= 0
        return following

    def _captured(self, bucket: int) -> Tensor:
        following = self._decode(bucket)  # this step; libraries load, and allocate
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph(), pool=self.pool):
            self.graphs[bucket] = (graph, self._decode(bucket))
        return following

    def _run(
        self, inputs: tuple[Tensor, ...], groups: list[Group], rows_asked: Tensor | None = None
    ) -> Tensor:
        tokens, positions, starts, lengths, table = inputs
        slots = pyflash.slots_of(table, lengths, starts, self.pages.size, len(tokens))
        calls = []
        for rows, sequences, of_group, longest in groups:
            own = (table[sequences], lengths[sequences])
            options: Any = {"causal": True, "cu_seqlens_q": of_group, "max_seqlen_q": longest}
            if self.use_schedule and longest <= 1 + self.max_draft:
                of = (self.model.shape.heads, self.k_caches[0], *own)
                options["schedule"] = pyflash.schedule(*of, **options)
            calls.append((rows, own, options))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            caches, out = (self.k_caches[layer], self.v_caches[layer]), torch.empty_like(q)
            pyflash.append_kv(k, v, *caches, slots)
            for rows, own, options in calls:
                pyflash.attention_paged(q[rows], *caches, *own, out=out[rows], **options)
            return out

        return self.model(tokens, positions, attend, rows_asked).argmax(-1)

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
        request.tokens.extend(new)
        gap = now - (request.last or request.came)
        self.metrics.times["between_tokens" if request.last else "first_token"].append(gap)
        request.last = now
        for token in new:
            request.sent.put(token)
        self._publish(request)

    def _publish(self, request: Request) -> None:
        size = self.pages.size
        for i in range(len(request.digests), request.n_keys // size):
            before, tokens = request.digests[-1:], request.tokens[i * size : (i + 1) * size]
            request.digests.append(digest_of(b"".join(before), tokens))
            self.pages.publish(request.pages[i], request.digests[-1])


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
    large = (shape := shape or ("8b" if device.type == "cuda" else "tiny")) != "tiny"
    sizes = {"max_running": 256, "max_tokens": 2048} if large else {}
    return Engine(Model(SHAPES[shape], device), num_pages or (16384 if large else 256), **sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--num-pages", type=int)
    asked = parser.parse_args()
    server = Server(engine_of(asked.shape, asked.num_pages), asked.port)
    print(f"serving on http://127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.is_closed = True


if __name__ == "__main__":
    main()
