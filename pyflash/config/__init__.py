"""Configs: what a kernel is, checked in words. Needs no torch and no compiler."""

from pyflash.config.arch import ARCHS, Arch
from pyflash.config.backward import BACKWARD
from pyflash.config.base import DType, KernelConfig
from pyflash.config.family import (
    FAMILIES,
    OPS,
    as_config,
    family_of,
    find_family,
    find_features,
    from_dict,
    parse,
    parse_short_form,
)
from pyflash.config.features import BUILT, FORWARD, Features, first_covering
from pyflash.config.op import KernelFeatures, Op
from pyflash.config.record import Family
from pyflash.config.rules import Violation
from pyflash.config.sets import SET_NAMES, from_environment, named_set, rank
from pyflash.config.sm80_backward import FlashBackwardKernelConfig
from pyflash.config.sm80_forward import FlashForwardKernelConfig
from pyflash.config.sm90_backward import FlashBackwardSm90Config
from pyflash.config.sm90_forward import FlashForwardSm90Config
from pyflash.config.space import Space

__all__ = [
    "ARCHS",
    "BACKWARD",
    "BUILT",
    "FAMILIES",
    "FORWARD",
    "OPS",
    "SET_NAMES",
    "Arch",
    "DType",
    "Family",
    "Features",
    "FlashBackwardKernelConfig",
    "FlashBackwardSm90Config",
    "FlashForwardKernelConfig",
    "FlashForwardSm90Config",
    "KernelConfig",
    "KernelFeatures",
    "Op",
    "Space",
    "Violation",
    "as_config",
    "family_of",
    "find_family",
    "find_features",
    "first_covering",
    "from_dict",
    "from_environment",
    "named_set",
    "parse",
    "parse_short_form",
    "rank",
]
