"""Calls of each op by a thread that has not used CUDA.

    PYTHONPATH=.:tests python -m support.first_calls '["forward", "sm90_forward"]'

prints "right", or raises what the thread raised.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from support.problems import Packed, Shape, make_inputs, make_packed
from torch import Tensor

from pyflash import attention, attention_varlen, built_configs, sdpa
from pyflash.config import family_of
from pyflash.op.reference import attention_ref, attention_varlen_ref

SHAPE = Shape("", 2, 300, 300, 4, heads_kv=2)
PACKED = Packed("", (113, 0, 67), (113, 9, 67), 4, 2)
STREAMS = ("current", "own")


def _attention(*inputs: Any, **options: Any) -> Any:
    return attention(*inputs, causal=True, **options)


def _split(*inputs: Any, **options: Any) -> Any:
    return attention(*inputs, causal=True, num_splits=3, **options)


def _varlen(*inputs: Any, **options: Any) -> Any:
    return attention_varlen(*inputs, causal=True, **options)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return sdpa(*heads_first, is_causal=True, enable_gqa=True, **options).transpose(1, 2)


def _gradient(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def gradient(q: Tensor, k: Tensor, v: Tensor, *lengths: Any, **options: Any) -> Tensor:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        call(*leaves, *lengths, **options).backward(torch.ones_like(q))
        return torch.cat([x.grad.flatten() for x in leaves])

    return gradient


CALLS: dict[str, Callable[..., Tensor]] = {
    "forward": _attention,
    "split": _split,
    "varlen": _varlen,
    "sdpa": _sdpa,
    "backward": _gradient(_attention),
    "varlen_backward": _gradient(_varlen),
}
OPS = list(CALLS)


def run_in_new_thread(op: str, family: str, stream: str, device: str) -> str:
    """ "right", or how the result of the thread differs from the formula's. Raises what the thread
    raised. family: whose config is named, "" for the selected one."""
    is_packed = op.startswith("varlen")
    make, problem = (make_packed, PACKED) if is_packed else (make_inputs, SHAPE)
    inputs = make(problem, torch.float16, 128, device)
    torch.cuda.synchronize(device)
    found: list[Any] = []

    def work() -> None:
        try:
            on = torch.cuda.stream(torch.cuda.Stream(device)) if stream == "own" else nullcontext()
            with on:
                options = {"config": _config(family)} if family else {}
                found.append(CALLS[op](*inputs, **options))
            torch.cuda.synchronize(device)
        except Exception as error:
            found[:] = [error]

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    expected = _expected(op, inputs)
    error = ((found[0].double() - expected).norm() / expected.norm()).item()
    return "right" if error < 1e-2 else f"off by {error:.3g} of its norm"


def _config(family: str) -> Any:
    return next(
        config
        for config in built_configs()
        if family_of(config).name == family and (config.d_head, config.dtype.name) == (128, "FP16")
    )


def _expected(op: str, inputs: tuple[Any, ...]) -> Tensor:
    def formula(*x: Any) -> Tensor:
        function = attention_varlen_ref if len(x) > 3 else attention_ref
        return function(*x[:5], dtype=torch.float64, causal=True)[0]

    q, k, v, *lengths = inputs
    doubles = [x.double() for x in (q, k, v)]
    call = _gradient(formula) if op.endswith("backward") else formula
    return call(*doubles, *lengths)


if __name__ == "__main__":
    print(run_in_new_thread(*json.loads(sys.argv[1]), "current", "cuda:0"))
