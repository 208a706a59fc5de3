"""Times the backward pass alone: own kernels, as they are and deterministic, beside PyTorch's flash
backward and cuDNN's where these take the problem, interleaved, medians.

    PYTHONPATH=.:tests python -m support.time_backward [--samples 20] [--family NAME] [WORD ...]

NAME: of the family of the own kernels, any by default. WORD: of the cases whose names have one of
these words. A line is a case: TFLOP/s by the pairs that
are attended, 10 d_head FLOPs each, and own over flash.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch

from pyflash import built_configs
from pyflash.config import family_of
from pyflash.op.backward import cuda, cudnn, kernels
from pyflash.op.reference import attended_with

TOKENS, WIDTH = 16384, 2048
LOGNORMAL = torch.distributions.LogNormal(6.5, 0.8)
Run = Callable[[], tuple[torch.Tensor, ...]]

OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window_1024": {"causal": True, "window_left": 1023},
    "chunk_2048": {"causal": True, "attention_chunk": 2048},
    "softcap": {"causal": True, "softcap": 30.0},
    "slopes": {"causal": True, "alibi_slopes": None},
}
# seqlen, heads of q over those of k and v, options
PADDED = [
    *((n, 1, name) for n in (1024, 4096, 16384) for name in ("full", "causal")),
    (4096, 8, "causal"),
    (16384, 8, "full"),
    (4096, 1, "window_1024"),
    (16384, 1, "window_1024"),
    (16384, 1, "chunk_2048"),
    (4096, 1, "softcap"),
    (4096, 1, "slopes"),
]
PACKED = ("full", "causal", "window_1024", "softcap")


def pairs(n: int, options: dict[str, Any]) -> int:
    """Query and key pairs that count, of n queries and keys."""
    rows = range(0, n, 1024)
    return sum(int(attended_with(options, torch.arange(n)[i : i + 1024], n, n).sum()) for i in rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--family", default="")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    torch.utils.deterministic.fill_uninitialized_memory = False
    print(torch.cuda.get_device_name(), torch.__version__)
    for d_head in (64, 96, 128, 192, 256):
        heads = WIDTH // d_head // 8 * 8 or 8  # groups of 8 divide them
        for n, group, name in PADDED:
            run_case(f"d{d_head} {n} {name} group_{group}", d_head, heads, group, name, [n], asked)
        torch.manual_seed(0)
        lengths: list[int] = []
        while sum(lengths) < TOKENS:
            one = int(LOGNORMAL.sample().clamp(16, 8192))
            lengths.append(min(one, TOKENS - sum(lengths)))
        for name in PACKED:
            run_case(f"d{d_head} packed {name}", d_head, heads, 1, name, lengths, asked)


def run_case(
    case: str, d_head: int, heads: int, group: int, name: str, lengths: list[int], asked: Any
) -> None:
    if asked.words and not any(word in case.split() for word in asked.words):
        return
    packed = "packed" in case
    options = dict(OPTIONS[name])
    n = lengths[0]
    leading = (TOKENS,) if packed else (TOKENS // n, n)
    grad_out, q = (
        torch.randn(*leading, heads, d_head, dtype=torch.bfloat16, device="cuda") for _ in range(2)
    )
    k, v = (
        torch.randn(*leading, heads // group, d_head, dtype=torch.bfloat16, device="cuda")
        for _ in range(2)
    )
    if "alibi_slopes" in options:
        options["alibi_slopes"] = torch.rand(heads, device="cuda")
    packing = ()
    if packed:
        starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
        packing = (starts, starts, max(lengths), max(lengths))
        forward = torch.ops.pyflash.fwd_varlen
    else:
        forward = torch.ops.pyflash.fwd
    try:
        out, lse = forward(q, k, v, *packing, **options)
    except RuntimeError as error:
        print(f"{case}: {error}")
        return
    inputs = (grad_out, out, lse, q, k, v)
    runs = runs_of(inputs, packing, options, asked.family)
    count = sum(pairs(x, OPTIONS[name]) for x in lengths) * (1 if packed else TOKENS // n)
    flops = 10 * d_head * heads * count
    found = time_all(runs, asked.samples)
    rates = {who: flops / ms / 1e9 for who, ms in found.items()}
    told = "  ".join(f"{who} {rate:.0f}" for who, rate in rates.items())
    over = (
        f"  own/flash {rates['own'] / rates['flash']:.2f}" if {"own", "flash"} <= {*rates} else ""
    )
    print(f"{case}: {told}{over}", flush=True)


def config_of(family: str, inputs: Any, packing: tuple[Any, ...], options: dict[str, Any]) -> str:
    """The first built one of the family that takes the problem; "": any of any family."""
    if not family:
        return ""
    problem = kernels.problem_of(*inputs[3:5], packing, options)
    for config in map(str, built_configs("backward")):
        takes_it = kernels.choice(inputs[3].device, {**problem, "config": config})[0]
        if takes_it and family_of(config).name == family:
            return config
    return "none"


def runs_of(
    inputs: Any, packing: tuple[Any, ...], options: dict[str, Any], family: str
) -> dict[str, Run]:
    """Those that take the call; what another finds differs from the first by less than 5 % of its
    norm, or it is left out with a word."""

    config = config_of(family, inputs, packing, options)

    def own() -> tuple[torch.Tensor, ...]:
        return kernels.bwd(*inputs, packing=packing, config=config, **options)

    def deterministic() -> tuple[torch.Tensor, ...]:
        torch.use_deterministic_algorithms(True)
        try:
            return own()
        finally:
            torch.use_deterministic_algorithms(False)

    def flash() -> tuple[torch.Tensor, ...]:
        refusal, cudnn.refusal = cudnn.refusal, lambda *_, **__: "not asked"
        try:
            if packing:
                return cuda._borrowed_packed(*inputs, *packing, **options)
            return cuda._borrowed(*inputs, **options)
        finally:
            cudnn.refusal = refusal

    q, k = inputs[3], inputs[4]
    runs: dict[str, Run] = {"own": own, "deterministic": deterministic}
    if not {"softcap", "alibi_slopes"} & {*options}:
        runs["flash"] = flash
        if not packing and not cudnn.refusal(
            q.device, q.dtype, q.shape[1], k.shape[1], q.shape[-1], options
        ):
            runs["cudnn"] = lambda: cudnn.bwd(*inputs, options)
    kept: dict[str, Run] = {}
    first = None
    for name, run in runs.items():
        try:
            gradients = run()
        except RuntimeError as error:
            print(f"  {name}: {str(error)[:200]}")
            continue
        first = first or gradients
        errors = [
            ((a.float() - b.float()).norm() / b.float().norm()).item()
            for a, b in zip(gradients, first, strict=True)
        ]
        if max(errors) < 0.05:
            kept[name] = run
        else:
            print(f"  {name} DIFFERS from the first by {max(errors):.3f}")
    return kept


def time_all(runs: dict[str, Run], samples: int) -> dict[str, float]:
    """Medians in milliseconds."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(samples + 3):
        for name, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(200_000)  # so that the host is ahead
            start.record()
            run()
            end.record()
            end.synchronize()
            if i >= 3:
                found[name].append(start.elapsed_time(end))
    return {name: statistics.median(times) for name, times in found.items()}


if __name__ == "__main__":
    main()
