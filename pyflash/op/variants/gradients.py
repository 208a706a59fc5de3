"""Which config of op backward computes the gradients of attention with a variant on a GPU, and of
which captured tensors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from pyflash.config import DType
from pyflash.op.errors import call
from pyflash.op.on_demand import static
from pyflash.op.selection import TORCH_DTYPES
from pyflash.op.variants.arguments import Captured, summed_of
from pyflash.op.variants.jit import constants_of, ensure_gradients_built
from pyflash.op.variants.kernels import options_in_backward

REFERENCE = "reference"
_ADVICE = f"backward={REFERENCE!r}, the formula in PyTorch"
# Lengths that need as much of a kernel as any.
_LONG = dict.fromkeys(("seqlen_q", "seqlen_k"), 1 << 20)
_LONG_PACKED = _LONG | dict.fromkeys(("total_q", "total_k"), 1 << 20)


def config_for(
    q: Tensor,
    captured: Captured,
    packing: Sequence[Any],
    arguments: Mapping[str, Any],
    compiles: bool,
) -> str:
    """The short form of the config of op backward that computes the gradients of a call, which is
    compiled where `compiles`. Raises RuntimeError for gradients that no kernel computes, and where
    none is built."""
    summed = summed_of(captured, [x.requires_grad for x in captured.tensors])
    options = options_in_backward(arguments)
    if summed and options.get("deterministic"):
        raise RuntimeError(
            "pyflash: deterministic came with gradients of what a variant captures, which kernels "
            "sum in any order on a GPU: expected calls that need not be deterministic, captured "
            "tensors that do not require gradients, or torch.use_deterministic_algorithms(True) "
            f"with {_ADVICE}"
        )
    if compiles:
        return ensure_gradients_built(captured.text, options, q, bool(packing), summed)
    numbers, _ = constants_of(options)
    problem = (q.dtype, static(q.shape[-1]), q.device.index, bool(packing))
    return _built(captured.text, numbers, *problem, summed)


def _built(*problem: Any) -> str:
    return _built_once(*problem)


@functools.lru_cache(maxsize=4096)
def _built_once(
    text: str,
    numbers: tuple[tuple[str, Any], ...],
    dtype: torch.dtype,
    d_head: int,
    device_index: int,
    packed: bool,
    summed: tuple[int, ...],
) -> str:
    """The first in rank of those that are built."""
    capability = torch.cuda.get_device_capability(device_index)
    of_q = next((known for known, of in TORCH_DTYPES.items() if of is dtype), None)
    if of_q is None:
        return ""  # the op says what is wrong
    return select(text, of_q, d_head, capability, packed, summed, **dict(numbers))[0]


# NOTE: torch.compiler.assume_constant_result, without the second that it takes to import.
# torch.compile looks through what is cached for what it wraps, which has no mark.
_built._dynamo_marked_constant = True  # type: ignore[attr-defined]


def select(
    text: str,
    dtype: DType,
    d_head: int,
    capability: tuple[int, int],
    packed: bool,
    summed: Sequence[int] = (),
    **options: Any,
) -> tuple[str, str]:
    """The config that computes the gradients of calls of any lengths, of those that are built, and
    why it does; those of the captured tensors `summed`, by their places, too. Raises RuntimeError
    where there is none."""
    extents = dict.fromkeys(("batch", "heads", "heads_kv"), 1) | (_LONG_PACKED if packed else _LONG)
    try:
        with _disable_current_modes():
            return call(
                torch.ops.pyflash.select_variant_backward,
                dtype=int(dtype),
                packed=packed,
                d_head=d_head,
                text=text,
                summed=list(summed),
                sm_arch=10 * capability[0] + capability[1],
                n_sms=1,
                **extents,
                **options,
            )
    except RuntimeError as error:
        if "compile=True" not in str(error):
            raise
        raise RuntimeError(f"{error}, or {_ADVICE}") from None
