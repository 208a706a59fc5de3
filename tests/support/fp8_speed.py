"""Decoding over caches of e4m3 beside those of q's type: microseconds, bytes a second and errors.

PYTHONPATH=.:tests python tests/support/fp8_speed.py
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor

import pyflash
from pyflash.op.built import built_configs
from pyflash.op.fp8 import quantised

HEADS, HEADS_KV, D_HEAD, PAGE = 32, 8, 128, 64
CELLS = [(b, n) for b in (1, 8, 64) for n in (1024, 8192, 32768)]
MOST_BYTES = 40e9  # of one tensor in q's type: of larger ones fewer sequences


def microseconds(call, n_calls: int) -> float:
    """The median of five of the mean of a graph's calls, each over caches of its own if they are
    small: the L2 holds none of them."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(n_calls):
            call(i)
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / n_calls)
    return sorted(times)[2]


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one sequence in fp64. q: (1, heads, d_head); k, v: (n, heads_kv, d_head)."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / q.shape[-1] ** 0.5
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def cell(batch: int, n: int, dtype: torch.dtype, **options) -> str:
    size = batch * n * HEADS_KV * D_HEAD
    if 2 * size * 2 > MOST_BYTES:
        return ""
    n_caches = max(1, min(8, int(300e6 // (2 * size))))  # bytes of e4m3 beyond the L2
    n_pages = batch * n // PAGE
    table = torch.randperm(n_pages, device="cuda").int().view(batch, -1)
    lengths = torch.full((batch,), n, dtype=torch.int32, device="cuda")
    q = torch.randn(batch, 1, HEADS, D_HEAD, device="cuda").to(dtype)
    k_scale = torch.linspace(0.01, 0.02, HEADS_KV, device="cuda")
    v_scale = torch.linspace(0.02, 0.01, HEADS_KV, device="cuda")
    shape = (n_pages, PAGE, HEADS_KV, D_HEAD)
    k, v = (torch.randn(shape, device="cuda", dtype=dtype) for _ in "kv")
    k8, v8 = (quantised(x.flatten(0, 1), s).view(shape) for x, s in ((k, k_scale), (v, v_scale)))
    caches = [(k8, v8)] + [(k8.clone(), v8.clone()) for _ in range(n_caches - 1)]
    caches16 = [(k, v)] + [(k.clone(), v.clone()) for _ in range(n_caches - 1)]
    given = {"k_scale": k_scale, "v_scale": v_scale}

    def of_fp8(i: int) -> Tensor:
        return pyflash.attention_paged(q, *caches[i % n_caches], table, lengths, **given, **options)

    def of_16(i: int) -> Tensor:
        return pyflash.attention_paged(q, *caches16[i % n_caches], table, lengths)

    n_calls = max(4, min(24, 2 * n_caches))
    fast = microseconds(of_fp8, n_calls)
    try:
        slow = microseconds(of_16, n_calls)
    except RuntimeError:
        slow = float("nan")
    out = of_fp8(0)
    error = 0.0
    for b in (0, batch - 1):
        pages = table[b].long()
        keys, values = (
            x[pages].flatten(0, 1).double() * s.double()[:, None]
            for x, s in ((k8, k_scale), (v8, v_scale))
        )
        expected = exact(q[b], keys, values)
        error = max(error, ((out[b] - expected).abs().max() / expected.abs().max()).item())
    rate = 2 * size / fast / 1e6
    return (
        f"{batch:>3} x {n // 1024:>2}k {str(dtype)[6:]:>9}: e4m3 {fast:8.1f} us {rate:5.2f} TB/s, "
        f"16 bit {slow:8.1f} us {4 * size / slow / 1e6:5.2f} TB/s, {slow / fast:5.2f} times, "
        f"error {error:.1e}"
    )


def main() -> None:
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), flush=True)
    start = time.perf_counter()
    for batch, n in CELLS:
        print(cell(batch, n, torch.bfloat16), flush=True)
    print(cell(64, 8192, torch.float16), flush=True)
    for config, row in built_configs().items():
        takes_it = config.dtype.name == "BF16" and config.d_head == D_HEAD
        if takes_it and any(f.fp8_kv for f in row.features):
            print(config, flush=True)
            for splits in (1, 2, 3, 4):
                print("  splits", splits, end=" ")
                options = {"config": str(config), "num_splits": splits}
                try:
                    print(cell(64, 8192, torch.bfloat16, **options), flush=True)
                except RuntimeError as error:
                    print(str(error)[:200], flush=True)
            if time.perf_counter() - start > 45:
                sys.exit("no time for other configs")


if __name__ == "__main__":
    main()
