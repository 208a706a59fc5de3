"""Configs: what a kernel is, checked in words. Needs no torch and no compiler."""

from pyflash.config.arch import ARCHS, Arch
from pyflash.config.base import DType, KernelConfig
from pyflash.config.family import (
    FAMILIES,
    as_config,
    family_of,
    find_family,
    from_dict,
    parse,
    parse_short_form,
)
from pyflash.config.features import BUILT, Features, first_covering
from pyflash.config.record import Family
from pyflash.config.rules import Violation
from pyflash.config.sets import SET_NAMES, from_environment, named_set, rank
from pyflash.config.sm80_forward import FlashForwardKernelConfig
from pyflash.config.sm90_forward import FlashForwardSm90Config
from pyflash.config.space import Space

__all__ = [
    "ARCHS",
    "BUILT",
    "FAMILIES",
    "SET_NAMES",
    "Arch",
    "DType",
    "Family",
    "Features",
    "FlashForwardKernelConfig",
    "FlashForwardSm90Config",
    "KernelConfig",
    "Space",
    "Violation",
    "as_config",
    "family_of",
    "find_family",
    "first_covering",
    "from_dict",
    "from_environment",
    "named_set",
    "parse",
    "parse_short_form",
    "rank",
]
