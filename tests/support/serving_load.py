"""The engine of examples/serve.py, or that on SDPA, under a simulated load: requests come, end, are
cancelled, and run out of pages. After each step the accounts of pages are checked, and the tokens
of each request that ended against a reference run without pages.

    PYTHONPATH=.:tests python -m support.serving_load --steps 100000
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import serve
import serve_compare

# Logits are of size 1; attention in 16 bit and in another order of sums changes them by this much,
# and a model in bfloat16, as on a GPU, by more.
TOLERANCES = {torch.float32: 0.02, torch.bfloat16: 0.15}


def reference_is(model: serve.Model, tokens: list[int], n_prompt: int) -> bool:
    """Whether each token behind the prompt is one that attention without pages gives the most, or
    as much up to rounding, behind those before it."""

    def attend(layer, q, k, v):
        q, k, v = (x.float().transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)

    of_all = torch.tensor(tokens, device=model.device)
    positions = torch.arange(len(tokens), device=model.device)
    logits = model(of_all, positions, attend)[n_prompt - 1 : -1]
    taken = logits.gather(1, of_all[n_prompt:, None])[:, 0]
    return bool((taken >= logits.amax(1) - TOLERANCES[model.dtype]).all())


def check_pages(engine: serve.Engine) -> None:
    """Each page is free, kept or used, by as many as have it."""
    pages, size = engine.pages, engine.pages.size
    used = Counter(page for request in engine.running for page in request.pages)
    assert all(not request.pages for request in engine.waiting)
    for page in range(pages.number):
        assert pages.users[page] == used[page], f"page {page}"
    everywhere = [*pages.free, *pages.kept, *used]
    assert sorted(everywhere) == list(range(pages.number)), "a page leaks, or is in two places"
    assert set(pages.kept) <= set(pages.digest_of)
    assert not set(pages.free) & set(pages.digest_of)
    assert {page: digest for digest, page in pages.page_of.items()} == pages.digest_of
    for request in engine.running:
        assert request.n_keys <= len(request.pages) * size
        assert request.n_keys < len(request.tokens)


def check_seats(engine: serve.Engine) -> None:
    """With what is noted, the device has what the host has."""
    seats, state = engine.seats, engine.seats.state.tolist()
    for place, value in seats.notes.items():
        state[place] = value
    assert set(seats.taken) == set(engine.running)
    assert state[seats.number + len(seats.taken) : 2 * seats.number] == [-1] * (
        seats.number - len(seats.taken)
    )
    for i, request in enumerate(seats.taken):
        begin = 2 * seats.number + i * seats.width
        assert request.seat == i
        assert state[i] == request.tokens[request.n_keys]
        assert state[seats.number + i] == request.n_keys
        assert state[begin : begin + len(request.pages)] == request.pages


class Simulation:
    def __init__(
        self,
        seed: int,
        num_pages: int = 40,
        page_size: int = 4,
        device: str = "cpu",
        kind: type[serve.Engine] = serve.Engine,
    ):
        self.rng = random.Random(seed)
        self.model = serve.Model(serve.SHAPES["tiny"], torch.device(device))
        self.engine = kind(self.model, num_pages, page_size, max_running=12, max_tokens=24)
        self.engine.use_schedule = seed % 2 == 0
        self.common = [self.rng.randrange(97) for _ in range(24)]
        self.asked: list[serve.Request] = []
        self.n_exact = self.n_tokens = 0

    def come(self) -> None:
        rng = self.rng
        prompt = self.common[: rng.randrange(25)] if rng.random() < 0.6 else []
        # Few tokens, so that guesses from what came before are right now and then.
        prompt = prompt + [rng.randrange(97) for _ in range(rng.randrange(1, 30))]
        limit = min(int(rng.lognormvariate(2.2, 0.8)) + 1, 100)
        request = serve.Request(prompt, limit)
        self.engine.submit(request)
        self.asked.append(request)

    def check_ended(self) -> None:
        for request in [r for r in self.asked if not r.sent.empty()]:
            while not request.sent.empty():
                token = request.sent.get()
                if token is None:
                    self.asked.remove(request)
                    new = request.tokens[len(request.prompt) :].tolist()
                    assert request.received == new
                    assert request.is_cancelled or len(new) == request.max_tokens
                    if new:
                        tokens = request.tokens.tolist()
                        assert reference_is(self.model, tokens, len(request.prompt))
                    self.n_tokens += len(new)
                    break
                request.received.append(token)

    def step(self, comes: bool = True) -> bool:
        rng = self.rng
        # In waves, so that it is idle at times and out of pages at others.
        rate = 0.05 if self.engine.metrics.counts["steps"] // 150 % 2 else 0.5
        while comes and rng.random() < rate and len(self.asked) < 40:
            self.come()
            self.asked[-1].received = []
        for request in self.asked:
            if rng.random() < 0.003:
                request.is_cancelled = True
        did = self.engine.step()
        check_pages(self.engine)
        check_seats(self.engine)
        self.check_ended()
        return did

    def run(self, steps: int, seconds: float = float("inf")) -> int:
        """Steps made. Then no more come, and all that are there end."""
        begin, made = time.perf_counter(), 0
        with torch.inference_mode():
            while made < steps and time.perf_counter() - begin < seconds:
                made += self.step()
            while self.asked:
                self.step(comes=False)
        assert self.engine.pages.n_available == self.engine.pages.number
        assert not self.engine.running
        assert not self.engine.waiting
        return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--sdpa", action="store_true", help="the engine of serve_compare.py")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kind = serve_compare.SdpaEngine if asked.sdpa else serve.Engine
    simulation = Simulation(asked.seed, kind=kind)
    simulation.run(200)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = simulation.run(asked.steps, asked.seconds)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{steps} steps; {simulation.n_tokens} tokens are right; memory {before} to {after} KB")
    print(simulation.engine.metrics.page(simulation.engine.pages), end="")


if __name__ == "__main__":
    main()
