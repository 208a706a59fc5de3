"""FlashAttention kernels whose configuration is a value."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyflash import installation

__version__ = installation.VERSION

# In a checkout, codegen/, third_party/ and cute_kernels/ stand beside this package; an installation
# has them inside, so that it takes no such names in site-packages.
if not (installation.FOLDER / "codegen").is_dir():
    __path__.append(str(installation.FOLDER.parent))

from pyflash.config import (
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
from pyflash.op.registration import register_with_torch
from pyflash.ui.notebook import drawn_by

if TYPE_CHECKING:
    from pyflash.emulator import (
        emulate,
        emulate_backward,
        emulate_backward_varlen,
        emulate_paged,
        emulate_varlen,
    )
    from pyflash.op.append import append_kv, slots_of
    from pyflash.op.cascade import attention_cascade
    from pyflash.op.flex import flex_attention
    from pyflash.op.functional import sdpa
    from pyflash.op.library import BuiltConfig, build, built_configs, load
    from pyflash.op.merge import merge_states
    from pyflash.op.ops import attention, attention_varlen
    from pyflash.op.paged import attention_cached, attention_paged
    from pyflash.op.schedule import Schedule, schedule
    from pyflash.op.selection import Problem, Selection, select
    from pyflash.op.variants.kept import keep_masks
    from pyflash.tuner.api import tune

# Imported at first use: these need torch and the compiled libraries, the config DSL needs neither.
_LAZY = {
    "append_kv": "pyflash.op.append",
    "attention": "pyflash.op.ops",
    "attention_cached": "pyflash.op.paged",
    "attention_cascade": "pyflash.op.cascade",
    "attention_paged": "pyflash.op.paged",
    "attention_varlen": "pyflash.op.ops",
    "BuiltConfig": "pyflash.op.library",
    "build": "pyflash.op.library",
    "built_configs": "pyflash.op.library",
    "emulate": "pyflash.emulator",
    "emulate_backward": "pyflash.emulator",
    "emulate_backward_varlen": "pyflash.emulator",
    "emulate_paged": "pyflash.emulator",
    "emulate_varlen": "pyflash.emulator",
    "flex_attention": "pyflash.op.flex",
    "keep_masks": "pyflash.op.variants.kept",
    "load": "pyflash.op.library",
    "merge_states": "pyflash.op.merge",
    "Problem": "pyflash.op.selection",
    "Schedule": "pyflash.op.schedule",
    "Selection": "pyflash.op.selection",
    "schedule": "pyflash.op.schedule",
    "select": "pyflash.op.selection",
    "sdpa": "pyflash.op.functional",
    "slots_of": "pyflash.op.append",
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
    "Schedule",
    "Selection",
    "Space",
    "Violation",
    "append_kv",
    "attention",
    "attention_cached",
    "attention_cascade",
    "attention_paged",
    "attention_varlen",
    "build",
    "built_configs",
    "emulate",
    "emulate_backward",
    "emulate_backward_varlen",
    "emulate_paged",
    "emulate_varlen",
    "flex_attention",
    "from_environment",
    "keep_masks",
    "load",
    "merge_states",
    "named_set",
    "schedule",
    "sdpa",
    "select",
    "slots_of",
    "tune",
]

if not TYPE_CHECKING:  # to a type checker an unknown name stays an error

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value  # so that a further call does not come here
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


for _type in (KernelConfig, Space):
    drawn_by(_type, "pyflash.inspect.sheet")

register_with_torch()
