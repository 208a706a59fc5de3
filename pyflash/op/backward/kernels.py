"""Gradients on a GPU by the kernels of op backward, where they are built.

They recompute P = exp(S - lse) from the given lse, as the borrowed ones do. dq is summed over
blocks of keys in float32, in whatever order these end: two calls differ by rounding. With the
option `deterministic`, and where `torch.use_deterministic_algorithms` is on, kernels run that keep
one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from pyflash.config import DType
from pyflash.op.built import built_configs
from pyflash.op.errors import run
from pyflash.op.options import OPTIONS, TENSORS, AttentionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

PADDED = (None, None, 0, 0)  # in place of packing
_DTYPES = {torch.float16: DType.FP16, torch.bfloat16: DType.BF16}
# Lengths that need as much of a kernel as any.
_UNKNOWN = dict.fromkeys(("seqlen_q", "seqlen_k", "total_q", "total_k"), 1 << 20)


def choice(device: torch.device, problem: Mapping[str, Any]) -> tuple[str, str]:
    """(config, reason): the config of op backward that computes the gradients of a problem there,
    "" for none, and why. problem: the arguments of `torch.ops.pyflash.select_backward`, but for
    the device's."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return "", "there is no GPU"
    properties = torch.cuda.get_device_properties(device)
    with _disable_current_modes():  # what traces a call does not trace texts
        tensors = {
            name: torch.empty(_shape(name, problem), dtype=problem[name].dtype, device="meta")
            for name in TENSORS
            if problem.get(name) is not None
        }
        return torch.ops.pyflash.select_backward(
            sm_arch=properties.major * 10 + properties.minor,
            n_sms=properties.multi_processor_count,
            **with_determinism({**problem, **tensors}),
        )


def _shape(name: str, problem: Mapping[str, Any]) -> list[int]:
    """The shape of a per-head option; the problem has the extents that are unknown in it."""
    shape = problem[name].shape
    known = (problem["batch"], problem["heads"])[-len(shape) :]
    if all(isinstance(n, int) for n in shape):
        return list(shape)
    return [n if isinstance(n, int) else of_q for n, of_q in zip(shape, known, strict=True)]


def with_determinism(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of these kernels, which torch's switch asks for one order, too."""
    if torch.are_deterministic_algorithms_enabled():
        return {**options, "deterministic": True}
    return options


def are_built() -> bool:
    """Whether the process has kernels of op backward for any GPU."""
    return bool(built_configs("backward"))


def takes(q: Tensor, k: Tensor, packing: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether these kernels compute the gradients of a call. packing: the positional arguments of
    `fwd_varlen` after v, or ()."""
    return not refusal(q, k, packing, options)


def refusal(q: Tensor, k: Tensor, packing: Sequence[Any], options: Mapping[str, Any]) -> str:
    """Why `takes` is False, as half a sentence; "": it is True."""
    config, reason = choice(q.device, problem_of(q, k, packing, options))
    return "" if config else reason


def problem_of(
    q: Tensor, k: Tensor, packing: Sequence[Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The problem of a call, as `choice` takes it."""
    problem = {
        "dtype": int(_DTYPES[q.dtype]),
        "packed": bool(packing),
        "batch": packing[0].shape[0] - 1 if packing else q.shape[0],
        "heads": q.shape[-2],
        "heads_kv": k.shape[-2],
        "seqlen_q": packing[2] if packing else q.shape[1],
        "seqlen_k": packing[3] if packing else k.shape[1],
        # NOTE: int() specialises the graph: kernels differ by d_head.
        "d_head": int(q.shape[-1]),
        "total_q": q.shape[0] if packing else 0,
        "total_k": k.shape[0] if packing else 0,
    }
    # NOTE: no graph is specialised by another extent that is unknown while a call is traced.
    problem = _estimated(problem)
    return problem | {name: x for name, x in options.items() if OPTIONS[name].in_backward}


def _estimated(problem: Mapping[str, Any]) -> dict[str, Any]:
    """A problem with numbers for its unknown extents, which agree with those that are known."""
    known = {name for name, x in problem.items() if isinstance(x, int)}
    found = {name: x if name in known else _UNKNOWN.get(name, 1) for name, x in problem.items()}
    if not problem["packed"]:
        return found
    totals = {"total_q": "seqlen_q", "total_k": "seqlen_k"}
    if "batch" not in known:  # enough to have all rows
        needed = (-(-found[n] // max(found[of], 1)) for n, of in totals.items() if n in known)
        found["batch"] = max([1, *needed])
    for name, of in totals.items():
        if name not in known:
            found[name] = min(found[name], found["batch"] * found[of])
    return found


def bwd(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    packing: Sequence[Any] = (),
    grad_lse: Tensor | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, where `takes` says so. packing: as there."""
    return run(
        torch.ops.pyflash.run_backward,
        *(grad_out, out, lse, grad_lse, q, k, v),
        *(packing or PADDED),
        **with_determinism(options),
    )
