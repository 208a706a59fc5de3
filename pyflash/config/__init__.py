"""Configs: what a kernel is, checked in words. Needs no torch and no compiler."""

from pyflash.config.arch import ARCHS, Arch
from pyflash.config.sm80_forward.config import (
    FIELDS,
    LOAD_COUNTS,
    DType,
    FlashForwardKernelConfig,
    check_field,
)
from pyflash.config.sm80_forward.rules import Violation
from pyflash.config.space import Space, from_environment, named_set

__all__ = [
    "ARCHS",
    "FIELDS",
    "LOAD_COUNTS",
    "Arch",
    "DType",
    "FlashForwardKernelConfig",
    "Space",
    "Violation",
    "check_field",
    "from_environment",
    "named_set",
]
