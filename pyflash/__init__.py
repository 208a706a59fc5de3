"""FlashAttention kernels whose configuration is a value."""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# In a checkout, codegen/, third_party/ and cute_kernels/ stand beside this package; an installation
# has them inside, so that it takes no other name in site-packages.
_HERE = Path(__file__).resolve().parent
if not (_HERE / "codegen").is_dir():
    __path__.append(str(_HERE.parent))

from pyflash.config import (  # noqa: E402
    Arch,
    DType,
    Features,
    FlashForwardKernelConfig,
    KernelConfig,
    Space,
    Violation,
    from_environment,
    named_set,
)

# Imported at first use: these need torch and the compiled libraries, the config DSL needs neither.
_LAZY = {
    "attention": "pyflash.op.ops",
    "attention_varlen": "pyflash.op.ops",
    "BuiltConfig": "pyflash.op.library",
    "build": "pyflash.op.library",
    "built_configs": "pyflash.op.library",
    "emulate": "pyflash.emulator",
    "emulate_varlen": "pyflash.emulator",
    "load": "pyflash.op.library",
    "Problem": "pyflash.op.selection",
    "Selection": "pyflash.op.selection",
    "select": "pyflash.op.selection",
    "sdpa": "pyflash.op.functional",
}

__all__ = [
    "Arch",
    "DType",
    "Features",
    "FlashForwardKernelConfig",
    "KernelConfig",
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
