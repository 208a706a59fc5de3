"""The engine of serve.py beside itself on PyTorch's SDPA, which gathers keys from pages: users who
each ask again when they have their answer, with lognormal lengths of prompts and answers.

    python examples/serve_compare.py --users 1,8,64,256 --seconds 8
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import deque
from typing import Any

import torch
import torch.nn.functional as F
from serve import SHAPES, Engine, Group, Metrics, Model, Request, Work, quantile
from torch import Tensor

import pyflash


class SdpaEngine(Engine):
    """Steps, appends and graphs are those of Engine. A call of SDPA needs all keys of a sequence in
    one tensor, so each layer gathers them, as many for each sequence as the longest has. A graph
    has the number of pages that it gathers, so there is one for some of these, too."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.width = self.seats.width
        self.graphs_of_width: dict[int, dict[int, tuple[Any, Tensor]]] = {}
        if self.use_graphs:  # what they gather is large, and no two of them run at once
            self.pool = torch.cuda.graph_pool_handle()

    def _mixed(self, work: list[Work]) -> Any:
        self.width = self.seats.width
        return super()._mixed(work)

    def _decoding(self, n: int) -> Any:
        some = max(self.seats.width // 32, 1)
        longest = max([len(request.pages) for request in self.running])
        self.width = -(-longest // some) * some
        self.graphs = self.graphs_of_width.setdefault(self.width, {})
        return super()._decoding(n)

    def _run(
        self, inputs: tuple[Tensor, ...], groups: list[Group], rows_asked: Tensor | None = None
    ) -> Tensor:
        tokens, positions, starts, lengths, table = inputs
        slots = pyflash.slots_of(table, lengths, starts, self.pages.size, len(tokens))
        calls = [self._padded(group, table[:, : self.width], lengths) for group in groups]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            caches, out = (self.k_caches[layer], self.v_caches[layer]), torch.empty_like(q)
            pyflash.append_kv(k, v, *caches, slots)
            for rows, table, bias, there, back in calls:
                keys, values = (x[table].flatten(1, 2).transpose(1, 2) for x in caches)
                # Heads that share a head of keys are rows beside each other, as queries are.
                heads = q[rows][there].unflatten(2, (keys.shape[1], -1)).permute(0, 2, 3, 1, 4)
                packed = F.scaled_dot_product_attention(heads.flatten(2, 3), keys, values, bias)
                o = packed.unflatten(2, heads.shape[2:4]).permute(0, 3, 1, 2, 4).flatten(2, 3)
                out[rows] = o[back]
            return out

        return self.model(tokens, positions, attend, rows_asked).argmax(-1)

    def _padded(self, group: Group, table: Tensor, lengths: Tensor) -> tuple[Any, ...]:
        """Where queries go to that are as many for each sequence, what they see, and the way back.
        The device alone knows how many each has."""
        n, of = group.max_seqlen_q, group.sequences
        number = group.rows.stop - group.rows.start
        begin, n_queries, table = group.starts[:-1, None], group.starts.diff(), table[of]
        query = torch.arange(n, device=table.device)
        there = (begin + query).clamp(max=number - 1)
        key = torch.arange(table.shape[1] * self.pages.size, device=table.device)
        # Empty seats and rows that pad see one key, so that no row is without any.
        last = (lengths[of] - n_queries)[:, None] + query
        bias = torch.where(key <= last.clamp(min=0)[..., None], 0.0, -torch.inf)
        bias = bias.to(self.model.attention_dtype)
        row = torch.arange(number, dtype=group.starts.dtype, device=table.device)
        sequence = torch.searchsorted(group.starts[1:], row, right=True)
        back = (sequence, row - group.starts[sequence])
        per_head = self.model.shape.heads // self.model.shape.heads_kv
        return group.rows, table, bias.repeat(1, per_head, 1)[:, None], there, back


def measured(engine: Engine, users: int, seconds: float, longest: int) -> list[float]:
    """Tokens a second, and times in ms, of the host in us, after as long without measuring."""
    rng, vocabulary, asked = random.Random(users), engine.model.shape.vocabulary, []
    for _ in range(2):
        engine.metrics = Metrics()
        engine.metrics.times = {name: deque() for name in engine.metrics.times}
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            asked = [r for r in asked if r.n_left > 0]
            for _ in range(users - len(asked)):
                n, limit = (int(longest / 8 * rng.lognormvariate(0, 1)) + 1 for _ in range(2))
                prompt = [rng.randrange(vocabulary) for _ in range(min(n, longest // 2))]
                asked.append(Request(prompt, min(limit, longest // 2)))
                engine.submit(asked[-1])
            engine.step()
        spent = time.perf_counter() - begin
    for request in asked:
        request.is_cancelled = True
    engine.step()
    times = {name: list(of) or [math.nan] for name, of in engine.metrics.times.items()}
    found = [engine.metrics.counts["tokens"] / spent]
    for name, unit in (("first_token", 1e3), ("between_tokens", 1e3), ("host", 1e6)):
        found += [unit * quantile(times[name], part) for part in (0.5, 0.99)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--shape", choices=list(SHAPES), default="8b" if on_gpu else "tiny")
    parser.add_argument("--users", default="1,8,64,256", help="numbers of users, each a line")
    parser.add_argument("--seconds", type=float, default=4, help="of each line, and before it")
    parser.add_argument("--longest", type=int, help="of a prompt and its answer, in tokens")
    parser.add_argument("--num-pages", type=int, help="of 16 tokens each")
    asked = parser.parse_args()
    model = Model(SHAPES[asked.shape], torch.device("cuda" if on_gpu else "cpu"))
    large = asked.shape != "tiny"
    users = [int(n) for n in asked.users.split(",")]
    # Guesses are right more often in one engine than in the other where roundings differ.
    sizes = {"max_running": max(users), "max_tokens": 2048 if large else 512, "max_draft": 0}
    num_pages, longest = asked.num_pages or (16384 if large else 4096), asked.longest
    names = ("first token, ms", "between tokens, ms", "host's metadata, us")
    print(f"{asked.shape}: median / p99\n{'attention':9}{'users':>6}{'tokens/s':>10}", end="")
    print("".join(f"{name:>22}" for name in names))
    for name, kind in (("pyflash", Engine), ("SDPA", SdpaEngine)):
        engine = kind(model, num_pages, **sizes)
        for n in users:
            with torch.inference_mode():
                rate, *times = measured(
                    engine, n, asked.seconds, longest or (2048 if large else 256)
                )
            pairs = "".join(
                f"{a:12.1f} /{b:8.1f}" for a, b in zip(times[::2], times[1::2], strict=True)
            )
            print(f"{name:9}{n:6}{rate:10.1f}{pairs}", flush=True)
        del engine
        if on_gpu:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
