"""Variants as they are timed: formulas, values for what they read, problems and times.

    given = given_of("alibi", problem_of(128, 4096))

Problems have 16k tokens, 16 heads of 128 or 32 of 64, bf16. Without a GPU they are some 64 times
smaller, so that every line can run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import pyflash
from pyflash.bench import timing
from pyflash.bench.contenders import Contender
from pyflash.bench.passes import Inputs, Pass, calls
from pyflash.bench.variants import Given
from pyflash.config import Arch, DType
from pyflash.op.selection import Problem
from pyflash.op.variants.jit import default_config
from pyflash.variant import Variant, parse
from pyflash.variant.library import named
from pyflash.variant.needs import needs_of

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
SMALLER = 1 if ON_GPU else 64
TOKENS = 16384 // SMALLER
D_HEADS = (128, 64)
SECONDS_OF_WARMUP = 0.2 if ON_GPU else 0.0  # clocks are up: calls follow each other

Run = Callable[[Tensor, Tensor, Tensor], Tensor]

# Those that are no file of the library, or have another type of element there.
TEXTS = {
    "bias": "bias(bias: bf16[4]): s + bias[b, h, q, k]",
    "bools": "bools(m: bool[2]): s where m[q, k]",
    "function": "function: s where (q * 31 + k) % 7 < 3",
}
NAMED = (
    "causal", "alibi", "documents", "window", "softcap", "prefix_lm", "t5_bias", "soft_window",
    "chunked", "global_window", "natten_2d", "shared_prefix", "padding", "block_causal", "dilated",
    "sandwich", "bias",
)  # fmt: skip


def variant_of(name: str) -> Variant:
    return parse(TEXTS[name]) if name in TEXTS else named(name).variant


def problem_of(d_head: int, seqlen: int, tokens: int = TOKENS, heads: int = 0) -> Problem:
    """As many sequences as there are tokens for; heads: 16 of 128, 32 of 64."""
    heads = heads or (16 * 128 // d_head if ON_GPU else 2)
    return Problem(
        batch=max(1, tokens // seqlen), heads_q=heads, heads_kv=heads, seqlen_q=seqlen,
        seqlen_k=seqlen, d_head=d_head, dtype=DType.BF16, device=DEVICE.type,
    )  # fmt: skip


def given_of(name: str, problem: Problem) -> Given:
    variant = variant_of(name)
    values = VALUES[name](problem) if name in VALUES else {}
    return Given(variant, name, values)


def ours(given: Given, **options: Any) -> Run:
    """A whole call, whose mask is kept. A kernel that is not in the cache is compiled."""
    known = given.arguments | {"compile": ON_GPU} | options
    return lambda q, k, v: pyflash.attention(q, k, v, **known)


def default_of(name: str, d_head: int, *, few_keys: bool = False) -> str:
    """The config that runs where none is named."""
    needs, arch = needs_of(variant_of(name)), Arch.of(90)
    return str(default_config(DType.BF16, d_head, arch, needs, few_keys=few_keys).canonical())


def microseconds(runs: Mapping[str, tuple[Run, list[Inputs]]], n_samples: int) -> dict[str, float]:
    """What a call takes the GPU, in turns: medians."""
    timed = {
        name: calls(Pass.FORWARD, Contender(name, run), buffers)
        for name, (run, buffers) in runs.items()
    }
    with mock.patch.object(timing, "SECONDS_OF_WARMUP", SECONDS_OF_WARMUP):
        found = timing.time_in_turns(timed, DEVICE, n_samples)
    return {name: 1e6 * x.seconds for name, x in found.items()}


def apart(out: Tensor, other: Tensor) -> float:
    """The norm of the difference over that of the second; NaN where either has one."""
    return float((out.float() - other.float()).norm() / other.float().norm())


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:160]}"


def say(line: str) -> None:
    print(line, flush=True)


def marked(value: float, most: float) -> str:
    return f"bar {most:g}{'' if value <= most else ' missed'}"


@contextmanager
def said(cell: str) -> Iterator[None]:
    """What a cell raises is a line."""
    try:
        yield
    except Exception as error:
        say(f"{cell}: failed: {first_line(error)}")


# Values.


def lengths_of_documents(tokens: int, seed: int) -> list[int]:
    """Lognormal ones of mean 700, sigma 1. Seed 910 has 108 in 64k tokens, 1,474 keys a query: of
    those the experiments had 108 and 1,481."""
    chance, mean = random.Random(seed), max(2, 700 // SMALLER)
    found: list[int] = []
    while (left := tokens - sum(found)) > 0:
        length = int(chance.lognormvariate(math.log(mean) - 0.5, 1))
        found.append(max(1, min(length, left)))
    return found


def documents_of(lengths: list[int]) -> Tensor:
    """(tokens,) numbers of documents."""
    return torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(torch.tensor(lengths))


def walked_scores(lengths: list[int], B_r: int, B_c: int) -> int:
    """Scores in the tiles of documents that are walked, of one head."""
    tokens, ends = sum(lengths), torch.tensor(list(accumulate(lengths)))
    rows = torch.arange(0, tokens, B_r)
    first, last = (
        torch.searchsorted(ends, x, right=True)
        for x in (rows, (rows + B_r - 1).clamp(max=tokens - 1))
    )
    starts = ends - torch.tensor(lengths)
    blocks = (ends[last] + B_c - 1) // B_c - starts[first] // B_c
    return int(blocks.sum()) * B_r * B_c


def _reach(problem: Problem, most: int = 1024) -> int:
    return max(2, min(most // SMALLER, problem.seqlen_k // 4))


def _tensor(values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.as_tensor(values, dtype=dtype, device=DEVICE)


def _slopes(problem: Problem) -> Tensor:
    return _tensor([2.0 ** (-8 * (h + 1) / problem.heads_q) for h in range(problem.heads_q)])


def _documents(problem: Problem) -> dict[str, Any]:
    n = problem.seqlen_k
    rows = [documents_of(lengths_of_documents(n, 910 + b)) for b in range(problem.batch)]
    return {"doc": torch.stack(rows).to(DEVICE)}


def _t5(problem: Problem) -> dict[str, Any]:
    """32 buckets, half of them for keys behind the query; distances above 8 by logarithms."""
    reach, buckets = 128, []
    for distance in range(-reach, reach + 1):
        n = abs(distance)
        far = 8 + int(math.log(max(n, 8) / 8) / math.log(reach / 8) * 8)
        buckets.append((n if n < 8 else min(far, 15)) + 16 * (distance > 0))
    weight = torch.randn(32, problem.heads_q, generator=torch.Generator().manual_seed(0))
    return {"bucket": _tensor(buckets, torch.int32), "weight": weight.to(DEVICE), "reach": reach}


def _image(problem: Problem) -> dict[str, Any]:
    """A square one, or of two squares."""
    width = 1 << (problem.seqlen_k.bit_length() - 1) // 2
    kernel = 13 if ON_GPU else 3
    return {"height": problem.seqlen_k // width, "width": width, "kernel": kernel}


def _branches(problem: Problem) -> dict[str, Any]:
    n = problem.seqlen_k
    branch = (torch.arange(n, dtype=torch.int32) - n // 4).clamp(min=0) // max(1, n // 8)
    return {"prefix": n // 4, "branch": branch.to(DEVICE)}


def _wave(problem: Problem) -> dict[str, Any]:
    distances = torch.arange(problem.seqlen_k, dtype=torch.float64)[:, None]
    rates = 10000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    wave = (torch.cos(distances * rates).sum(1) / 32).float()
    return {"wave": wave.to(DEVICE), "slope": 8 * _slopes(problem)}


def _bias(problem: Problem) -> dict[str, Any]:
    shape = (problem.batch, problem.heads_q, problem.seqlen_q, problem.seqlen_k)
    return {"bias": torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)}


def _bools(problem: Problem) -> dict[str, Any]:
    """Six of ten are shown, at random."""
    shape = (problem.seqlen_q, problem.seqlen_k)
    return {"m": torch.randint(0, 10, shape, dtype=torch.uint8, device=DEVICE) < 6}


def _padding(problem: Problem) -> dict[str, Any]:
    n = problem.seqlen_k
    return {"lengths": _tensor([n - n * (b % 4) // 8 for b in range(problem.batch)], torch.int32)}


VALUES: dict[str, Callable[[Problem], dict[str, Any]]] = {
    "alibi": lambda p: {"slope": _slopes(p)},
    "documents": _documents,
    "window": lambda p: {"left": _reach(p), "right": 0},
    "softcap": lambda p: {"cap": 30.0},
    "prefix_lm": lambda p: {"prefix": _tensor([p.seqlen_k // 4] * p.batch, torch.int32)},
    "t5_bias": _t5,
    "soft_window": lambda p: {"slope": _slopes(p), "reach": _reach(p)},
    "chunked": lambda p: {"chunk": _reach(p, 1000)},
    "global_window": lambda p: {"first": _reach(p, 64), "reach": _reach(p, 256)},
    "natten_2d": _image,
    "shared_prefix": _branches,
    "padding": _padding,
    "block_causal": lambda p: {"block": _reach(p, 256)},
    "dilated": lambda p: {"width": max(1, _reach(p) // 4), "dilation": 4},
    "sandwich": _wave,
    "bias": _bias,
    "bools": _bools,
}
