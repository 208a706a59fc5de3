"""Whose kernels compute the gradients of q, k and v on a GPU: the rule, and what is said of it.

cuDNN's where it suits, unless `OWN_BEFORE_CUDNN` has the problem; own ones where they are built and
take the problem; else PyTorch's flash backward. A gradient of lse is of own kernels alone. Kernels
of `UNMEASURED` generations run what nothing else does. PYFLASH_BACKWARD=own takes own ones first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch

from pyflash.config import DType, family_of
from pyflash.op.backward import cudnn, kernels
from pyflash.op.options import OPTIONS, OWN_KERNELS, given, windows_of

# Where gradients of q, k and v are computed, in words.
PLACES = {"cuda": "a GPU", "cpu": "the CPU"}


class Measured(NamedTuple):
    """Problems that cuDNN suits, full or causal ones of as many queries as keys."""

    causal: bool
    d_head: range
    seqlen_k: range
    group: range  # query heads of a head of k and v


# Where own kernels were measured to be faster than cuDNN's: docs/experiments/2026-11-backward.md.
_LONGEST = 16384
_D_64, _D_128 = range(64, 65), range(128, 129)


def _from(shortest: int) -> range:
    return range(shortest, _LONGEST + 1)


OWN_BEFORE_CUDNN: tuple[Measured, ...] = (
    *(Measured(True, d_head, _from(512), range(1, 2)) for d_head in (_D_64, _D_128)),
    *(Measured(True, d_head, _from(1024), range(2, 9)) for d_head in (_D_64, _D_128)),
    *(Measured(True, d_head, _from(_LONGEST), range(9, 17)) for d_head in (_D_64, _D_128)),
    *(Measured(False, d_head, _from(1024), range(2, 17)) for d_head in (_D_64, _D_128)),
    Measured(False, _D_64, _from(1024), range(1, 2)),
    Measured(False, _D_128, _from(1536), range(1, 2)),
)


# The generations whose kernels no GPU has been measured with.
UNMEASURED = (80,)


class By(Enum):
    OWN = "pyflash's own kernels"
    CUDNN = "PyTorch's cuDNN backward"
    FLASH = "PyTorch's flash backward"


class Choice(NamedTuple):
    by: By
    config: str = ""  # of own kernels
    own: str = ""  # why that config, or why none; "": it was not asked for one
    not_cudnn: str = ""  # "": it suits

    def __str__(self) -> str:
        """As `pyflash.select` tells it."""
        if self.by is By.OWN:
            instead = self.not_cudnn or "measured to be slower"
            return f"{self.config}: {self.own}; not cuDNN's: {instead}"
        reasons = [self.not_cudnn] if self.not_cudnn else []
        if kernels.are_built():
            reasons.append(f"no kernel of pyflash: {self.own or 'none is known to be faster'}")
        return ": ".join([self.by.value, *(["; ".join(reasons)] if reasons else [])])


def choose(
    device: torch.device, problem: Mapping[str, Any], gradient_of_lse: bool = False
) -> Choice:
    """Whose kernels run a problem on a GPU. problem: as `kernels.choice` takes it."""
    not_cudnn = _refusal_of_cudnn(device, problem, gradient_of_lse)
    asked_for_own = os.environ.get("PYFLASH_BACKWARD") == "own"
    if not not_cudnn and not own_is_faster(problem) and not asked_for_own:
        return Choice(By.CUDNN)
    config, own = _own(device, problem)
    if config and not asked_for_own and family_of(config).generation in UNMEASURED:
        borrowed = not gradient_of_lse and not without_gradients(_options_of(problem), "cuda")
        if borrowed:
            config, own = "", f"{config} takes it, but no GPU was measured with its family"
    if config:
        return Choice(By.OWN, config, own, not_cudnn)
    return Choice(By.FLASH if not_cudnn else By.CUDNN, "", own, not_cudnn)


def _own(device: torch.device, problem: Mapping[str, Any]) -> tuple[str, str]:
    for name in without_gradients(_options_of(problem), OWN_KERNELS):
        return "", f"{name} has no gradients there"
    return kernels.choice(device, problem)


def own_is_faster(problem: Mapping[str, Any]) -> bool:
    """By `OWN_BEFORE_CUDNN`. problem: one that cuDNN suits."""
    causal = windows_of(problem, problem["seqlen_q"], problem["seqlen_k"]) != (-1, -1)
    group = problem["heads"] // max(problem["heads_kv"], 1)
    return any(
        causal == row.causal
        and problem["d_head"] in row.d_head
        and problem["seqlen_k"] in row.seqlen_k
        and group in row.group
        for row in OWN_BEFORE_CUDNN
    )


def _refusal_of_cudnn(
    device: torch.device, problem: Mapping[str, Any], gradient_of_lse: bool
) -> str:
    if gradient_of_lse:
        return "lse has a gradient"
    options = _options_of(problem)
    for name in without_gradients(options, "cuda"):
        return f"{name} is set"
    if problem["heads"] > cudnn.MAX_HEADS:
        return f"there are more than {cudnn.MAX_HEADS} heads"
    refusal = cudnn.refusal(
        device,
        torch.float16 if problem["dtype"] == int(DType.FP16) else torch.bfloat16,
        problem["seqlen_q"],
        problem["seqlen_k"],
        problem["d_head"],
        options,
        problem["packed"],
    )
    return refusal or ""


def _options_of(problem: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in problem.items() if name in OPTIONS}


def without_gradients(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The given options with which q, k and v have no gradients on a device of that type, or by
    `OWN_KERNELS`."""
    if where not in (*PLACES, OWN_KERNELS):
        return {}
    if switch_is_on():
        options = {name: x for name, x in options.items() if name != "deterministic"}
    has_gradients = {"cuda", OWN_KERNELS} if where == OWN_KERNELS else {where}
    return {
        n: x for n, x in given(options).items() if not has_gradients & {*OPTIONS[n].gradients_on}
    }


def switch_is_on() -> bool:
    """Whether PyTorch's kernels sum in one order, which is of the process and no argument of a
    call."""
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled() and not warn_only


# NOTE: torch.compile cannot trace what reads the switch; each graph is guarded by it.
switch_is_on._dynamo_marked_constant = True  # type: ignore[attr-defined]
