"""Whose kernels compute the gradients of q, k and v on a GPU: the rule, and what is said of it.

Own ones where they are built and take the problem; else cuDNN's where it suits; else PyTorch's
flash backward. A gradient of lse is of own kernels alone. Kernels of `UNMEASURED` generations run
what nothing else does, or everything that they take where PYFLASH_BACKWARD=own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch

from pyflash.config import DType, family_of
from pyflash.op.backward import cudnn, kernels
from pyflash.op.options import OPTIONS, OWN_KERNELS, given

# Where gradients of q, k and v are computed, in words.
PLACES = {"cuda": "a GPU", "cpu": "the CPU"}


# The generations whose kernels no GPU has been measured with, and the variable of the environment
# that has them run, "own".
UNMEASURED = (80,)
SWITCH = "PYFLASH_BACKWARD"


class By(Enum):
    OWN = "pyflash's own kernels"
    CUDNN = "PyTorch's cuDNN backward"
    FLASH = "PyTorch's flash backward"


class Choice(NamedTuple):
    by: By
    config: str = ""  # of own kernels
    own: str = ""  # why that config, or why none
    not_cudnn: str = ""  # "": it suits

    def __str__(self) -> str:
        """As `pyflash.select` tells it."""
        if self.by is By.OWN:
            return f"{self.config}: {self.own}"
        reasons = [self.not_cudnn] if self.not_cudnn else []
        if kernels.are_built():
            reasons.append(f"no kernel of pyflash: {self.own}")
        return ": ".join([self.by.value, *(["; ".join(reasons)] if reasons else [])])


def choose(
    device: torch.device, problem: Mapping[str, Any], gradient_of_lse: bool = False
) -> Choice:
    """Whose kernels run a problem on a GPU. problem: as `kernels.choice` takes it."""
    config, own = _own(device, problem)
    if config and not is_measured(config):
        others_run = not gradient_of_lse and not without_gradients(_options_of(problem), "cuda")
        if others_run and os.environ.get(SWITCH) != "own":
            config, own = "", f"{config} takes it, but no GPU was measured with its family"
    if config:
        return Choice(By.OWN, config, own)
    not_cudnn = _refusal_of_cudnn(device, problem, gradient_of_lse)
    return Choice(By.FLASH if not_cudnn else By.CUDNN, "", own, not_cudnn)


def is_measured(config: str) -> bool:
    """Whether a GPU was measured with the family of a config."""
    return family_of(config).generation not in UNMEASURED


def _own(device: torch.device, problem: Mapping[str, Any]) -> tuple[str, str]:
    for name in without_gradients(_options_of(problem), OWN_KERNELS):
        return "", f"{name} has no gradients there"
    return kernels.choice(device, problem)


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
