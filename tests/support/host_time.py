"""Host time of attention in a step of training, beside PyTorch's SDPA: a call that is not recorded,
one that autograd records, and its backward pass, in microseconds a call.

    PYTHONPATH=.:tests python -m support.host_time [--batches 200] [--calls 20] [--rows 512]
        [--heads 2] [--d-head 64] [WORD ...]

A line is a contender with its options; WORD: of those with one of these words. Figures are medians
of batches of calls, interleaved. Nothing is in a GPU's queue when a batch begins, and too few calls
are in one to fill it: a call returns when the host has done its part. On the CPU a call of one row
computes, too.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import pyflash

PACKAGE = str(Path(pyflash.__file__).parent)
MEASURES = ("forward", "recorded forward", "backward")


class Contender(NamedTuple):
    name: str
    attend: Callable[..., Tensor]  # of q, k and v
    inputs: tuple[Tensor, Tensor, Tensor]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # of a batch


class _Nothing(torch.autograd.Function):
    """What torch itself takes for a function in Python of three tensors."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return q.view_as(q)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return grad_out, grad_out, grad_out


def contenders(device: str, rows: int, heads: int, d_head: int) -> list[Contender]:
    """Those that run here."""
    q, k, v = torch.randn(3, 1, rows, heads, d_head, device=device).bfloat16()
    heads_first = tuple(x.transpose(1, 2).contiguous() for x in (q, k, v))
    starts = torch.tensor([0, rows], dtype=torch.int32, device=device)
    packing = (starts, starts, rows, rows)
    packed = (q[0], k[0], v[0])
    found = [
        Contender("pyflash", pyflash.attention, (q, k, v)),
        Contender("pyflash causal", lambda *x: pyflash.attention(*x, causal=True), (q, k, v)),
        Contender("pyflash packed", lambda *x: pyflash.attention_varlen(*x, *packing), packed),
    ]
    backends = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    for name, backend in backends.items():
        for options in ({}, {"is_causal": True}):
            found.append(
                Contender(
                    f"SDPA {name}{' causal' if options else ''}",
                    lambda *x, options=options: scaled_dot_product_attention(*x, **options),
                    heads_first,
                    lambda backend=backend: sdpa_kernel(backend),
                )
            )
    found.append(Contender("a function that does nothing", _Nothing.apply, (q, k, v)))
    return [contender for contender in found if _runs(contender)]


def _runs(contender: Contender) -> bool:
    try:
        _microseconds(contender, "backward", 1)
    except RuntimeError as error:
        print(f"{contender.name}: {str(error).splitlines()[0][:120]}")
        return False
    return True


def _microseconds(contender: Contender, measure: str, n_calls: int) -> float:
    attend, inputs = contender.attend, contender.inputs
    if measure != "forward":
        inputs = tuple(x.detach().requires_grad_() for x in inputs)
    with contender.around():
        if measure == "backward":
            outs = [attend(*inputs) for _ in range(n_calls)]
            upstream = torch.ones_like(outs[0])
            return _timed([lambda out=out: _backward(out, inputs, upstream) for out in outs])
        return _timed([lambda: attend(*inputs)] * n_calls)


def _backward(out: Tensor, inputs: Sequence[Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, inputs, upstream)


def _timed(calls: Sequence[Callable[[], Any]]) -> float:
    """Microseconds a call; results live until all have run."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    with _no_collection():
        start = time.perf_counter_ns()
        results = [call() for call in calls]
        nanoseconds = time.perf_counter_ns() - start
    del results
    return nanoseconds / len(calls) / 1e3


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def host_times(
    all_of_them: Sequence[Contender], n_batches: int, n_calls: int
) -> dict[str, dict[str, float]]:
    """Medians by contender and measure."""
    samples: dict[tuple[str, str], list[float]] = {}
    for batch in range(n_batches + 1):
        for contender in all_of_them:
            for measure in MEASURES:
                found = _microseconds(contender, measure, n_calls)
                if batch > 0:  # the first warms up
                    samples.setdefault((contender.name, measure), []).append(found)
    return {
        contender.name: {m: median(samples[contender.name, m]) for m in MEASURES}
        for contender in all_of_them
    }


def frames_of(call: Callable[[], Any]) -> Counter[str]:
    """The functions of this package that run in Python."""
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found[frame.f_code.co_name] += 1

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def main(words: Sequence[str] | None = None) -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--rows", type=int, default=512 if on_gpu else 1)
    parser.add_argument("--heads", type=int, default=2 if on_gpu else 1)
    parser.add_argument("--d-head", type=int, default=64 if on_gpu else 8)
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args(words)
    torch.manual_seed(0)
    device = "cuda" if on_gpu else "cpu"
    if not on_gpu:
        torch.set_num_threads(1)  # else waking the others is measured, too
    print(torch.cuda.get_device_name() if on_gpu else "CPU", "torch", torch.__version__)
    found = contenders(device, asked.rows, asked.heads, asked.d_head)
    if asked.words:
        found = [x for x in found if any(word in x.name for word in asked.words)]
    print(f"{'us/call':<30}" + "".join(f"{measure:>18}" for measure in MEASURES))
    for name, times in host_times(found, asked.batches, asked.calls).items():
        print(f"{name:<30}" + "".join(f"{times[measure]:18.1f}" for measure in MEASURES))


if __name__ == "__main__":
    main()
