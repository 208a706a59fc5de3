"""FlashAttention kernels whose configuration is a value."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    FlashForwardSm90Config,
    KernelConfig,
    Space,
    Violation,
    from_environment,
    named_set,
)
from pyflash.op.registration import register_with_torch  # noqa: E402

if TYPE_CHECKING:
    from pyflash.emulator import emulate, emulate_varlen
    from pyflash.op.functional import sdpa
    from pyflash.op.library import BuiltConfig, build, built_configs, load
    from pyflash.op.ops import attention, attention_varlen
    from pyflash.op.selection import Problem, Selection, select
    from pyflash.tuner.api import tune

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
    "tune": "pyflash.tuner.api",
}

__all__ = [
    "Arch",
    "BuiltConfig",
    "DType",
    "Features",
    "FlashForwardKernelConfig",
    "FlashForwardSm90Config",
    "KernelConfig",
    "Problem",
    "Selection",
    "Space",
    "Violation",
    "attention",
    "attention_varlen",
    "build",
    "built_configs",
    "emulate",
    "emulate_varlen",
    "from_environment",
    "load",
    "named_set",
    "sdpa",
    "select",
    "tune",
]

if not TYPE_CHECKING:  # to a type checker an unknown name stays an error

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


register_with_torch()
