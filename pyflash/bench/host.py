"""Host time per call: the CPU's part of a call of attention, beside that of PyTorch's SDPA."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import pyflash

BASELINE = "torch.nn.functional.scaled_dot_product_attention"
_CALLS_PER_SAMPLE = 100  # that many fit into the queue of a GPU


@dataclass(frozen=True, slots=True)
class HostTime:
    name: str
    microseconds: float  # per call, the median of the samples
    ratio: float  # to the baseline's, in the same run

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def host_times(device: torch.device, n_samples: int) -> list[HostTime]:
    """The baseline first. Samples are interleaved. On a GPU a call returns before its kernel ends;
    on the CPU the figures contain the computation, of one query and one key by one thread. On a GPU
    the kernel of the variant is compiled first, if it is not in the cache."""
    calls = _calls(device)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # else waking the others is measured, too
    try:
        for turn in range(n_samples + 1):
            for name, call in calls.items():
                sample = _microseconds(call, device)
                if turn > 0:  # the first warms up
                    samples[name].append(sample)
    finally:
        torch.set_num_threads(n_threads)
    medians = {name: median(values) for name, values in samples.items()}
    return [HostTime(name, us, us / medians[BASELINE]) for name, us in medians.items()]


def host_table(times: list[HostTime]) -> str:
    lines = [f"{'us/call':>8} {'ratio':>6}  call"]
    lines += [f"{x.microseconds:8.2f} {x.ratio:6.2f}  {x.name}" for x in times]
    return "\n".join(lines)


def _calls(device: torch.device) -> dict[str, Callable[[], Any]]:
    seqlen = 64 if device.type == "cuda" else 1
    q, k, v = torch.randn(3, 1, seqlen, 2, 64, device=device).half()
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    lengths = torch.tensor([0, seqlen], dtype=torch.int32, device=device)
    packed = (q[0], k[0], v[0], lengths, lengths, seqlen, seqlen)
    fwd, fwd_varlen = torch.ops.pyflash.fwd, torch.ops.pyflash.fwd_varlen
    slopes = torch.ones(2, device=device)
    problem = pyflash.Problem(
        batch=1, heads_q=2, heads_kv=2, seqlen_q=seqlen, seqlen_k=seqlen, d_head=64,
        dtype=pyflash.DType.FP16, device=str(device),
    )  # fmt: skip
    config = pyflash.select(problem).config
    k_cache, v_cache = torch.randn(2, 1, 64, 2, 64, device=device).half()  # a page, or a row
    table, used = torch.tensor([[0], [seqlen]], dtype=torch.int32, device=device).split(1)
    used = used[0]
    slots = torch.arange(seqlen, device=device)
    level = (table, used, lengths, seqlen)
    step = (2, k_cache, table, used)

    def alibi(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + slopes[h] * (j - i)

    calls = {
        BASELINE: lambda: scaled_dot_product_attention(*heads_first),
        "torch.ops.pyflash.fwd": lambda: fwd(q, k, v),
        "torch.ops.pyflash.fwd, causal": lambda: fwd(q, k, v, causal=True),
        "torch.ops.pyflash.fwd_varlen": lambda: fwd_varlen(*packed),
        "pyflash.attention": lambda: pyflash.attention(q, k, v),
        "pyflash.attention_varlen": lambda: pyflash.attention_varlen(*packed),
        "pyflash.attention, config": lambda: pyflash.attention(q, k, v, config=config),
        "pyflash.attention, config, compile": lambda: pyflash.attention(
            q, k, v, config=config, compile=True
        ),
        "pyflash.attention_paged": lambda: pyflash.attention_paged(
            q, k_cache, v_cache, table, used
        ),
        "pyflash.attention_cached": lambda: pyflash.attention_cached(q, k_cache, v_cache, used),
        "pyflash.attention_cascade": lambda: pyflash.attention_cascade(
            q[0], k_cache, v_cache, [level, level]
        ),
        "pyflash.append_kv": lambda: pyflash.append_kv(k[0], v[0], k_cache, v_cache, slots),
        "pyflash.sdpa": lambda: pyflash.sdpa(*heads_first),
        "pyflash.attention, variant": lambda: pyflash.attention(
            q, k, v, variant="alibi", tensors={"slope": slopes}, compile=True
        ),
        "pyflash.flex_attention": lambda: pyflash.flex_attention(*heads_first, score_mod=alibi),
    }
    try:
        made = pyflash.schedule(*step)
    except RuntimeError:  # no kernel that is built for this GPU takes one
        return calls
    return calls | {
        "pyflash.schedule": lambda: pyflash.schedule(*step),
        "pyflash.Schedule.update": lambda: made.update(*step[1:]),
        "pyflash.attention_paged, schedule": lambda: pyflash.attention_paged(
            q[:, :1], k_cache, v_cache, table, used, schedule=made
        ),
    }


def _microseconds(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter_ns()
    for _ in range(_CALLS_PER_SAMPLE):
        call()
    return (time.perf_counter_ns() - start) / _CALLS_PER_SAMPLE / 1e3
