"""FlashAttention kernels whose configuration is a value."""

from importlib import import_module
from typing import Any

from pyflash.arch import Arch
from pyflash.config import DType, FlashForwardKernelConfig
from pyflash.rules import Violation
from pyflash.space import Space, from_environment, named_set

# Imported at first use: these need torch and the compiled libraries, the config DSL needs neither.
_LAZY = {
    "attention": "pyflash.ops",
    "attention_varlen": "pyflash.ops",
    "BuiltConfig": "pyflash.library",
    "build": "pyflash.library",
    "built_configs": "pyflash.library",
    "emulate": "pyflash.emulator",
    "emulate_varlen": "pyflash.emulator",
    "load": "pyflash.library",
    "Problem": "pyflash.selection",
    "Selection": "pyflash.selection",
    "select": "pyflash.selection",
    "sdpa": "pyflash.functional",
}

__all__ = [
    "Arch",
    "DType",
    "FlashForwardKernelConfig",
    "Space",
    "Violation",
    "from_environment",
    "named_set",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
