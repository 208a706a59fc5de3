"""Records as `pyflash bench` writes them."""

from __future__ import annotations

from typing import Any


def record(
    contender: str = "pyflash",
    seqlen: int = 4096,
    tflops: float = 400.0,
    causal: bool = False,
    what: str = "forward",
) -> dict[str, Any]:
    problem = {
        "batch": 4, "heads_q": 16, "heads_kv": 16, "seqlen_q": seqlen, "seqlen_k": seqlen,
        "d_head": 128, "dtype": "BF16", "packed": False, "device": "cuda",
        "options": {"causal": causal},
    }  # fmt: skip
    return {
        "bench": "attention",
        "time": "2026-11-21T12:00:00+00:00",
        "environment": {"device": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0"},
        "problem": problem,
        "contender": contender,
        "what": what,
        "status": "ok",
        "config": None,
        "short_form": None,
        "error": 1e-3,
        "bound": 2e-3,
        "timing": {"seconds": 1e-3, "spread": 0.02, "n_samples": 25},
        "tflops": tflops,
        "ratio": 1.1,
        "percent_of_gemm": 60.0,
        "gb_per_second": tflops / 2 if what == "forward" else None,
        "host_microseconds": 5.0,
    }


def run_of_four() -> list[dict[str, Any]]:
    return [
        record(name, seqlen, rate * (1 + seqlen / 16384))
        for seqlen in (512, 4096)
        for name, rate in (("PyTorch flash", 350.0), ("pyflash", 400.0))
    ]
