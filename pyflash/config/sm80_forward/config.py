"""The configuration key: a kernel is one value of `FlashForwardKernelConfig`.

The struct of the same name in cute_kernels/config.h has the same fields in the same order. New
fields go at the end, each with a default that the short form does not print.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, get_type_hints

from pyflash.config import parsing
from pyflash.config.arch import Arch
from pyflash.config.sm80_forward import rules
from pyflash.config.sm80_forward.resources import Resources, resources
from pyflash.config.sm80_forward.rules import Violation


class DType(IntEnum):
    """Element type of Q, K, V and O, numbered as c10::ScalarType numbers them."""

    FP16 = 5
    BF16 = 15


@dataclass(frozen=True, order=True, slots=True)
class FlashForwardKernelConfig:
    """One forward kernel. Ordered lexicographically, field by field.

    A wrong type raises TypeError, a size below 1 or a negative load count ValueError. Any other
    value can be written down; whether it can be built and launched is what `violations` tells.
    """

    dtype: DType
    d_head: int  # head dimension
    B_r: int  # Q rows per CTA
    B_c: int  # K/V rows per block
    n_warps: int  # per CTA, each owns B_r / n_warps rows
    async_copy: bool  # gmem to smem with cp.async, or with 16-byte loads through registers
    eager_load_blocks: bool  # V[j] loads behind S = QK^T, K[j+1] behind softmax and O += PV
    swizzled: bool  # smem layouts through a Swizzle<B,M,S> atom, or plain row-major
    # Fragments of 8 columns along the GEMM's K dimension (d_head for Q and K, B_c for V) loaded per
    # stage, smem to registers. 0: the whole block before the GEMM; all of Q once, and kept.
    Q_mma_load_K_tiles: int
    K_mma_load_K_tiles: int
    V_mma_load_K_tiles: int
    mma_double_buffer_loads: bool  # the next stage's ldmatrix before the current stage's mma
    optimized_softmax: bool  # exp2 with a folded scale; first block peeled
    kv_stages: int = 1  # K and V each in a ring of so many smem stages

    def __post_init__(self) -> None:
        for name in FIELDS:
            check_field(name, getattr(self, name))

    # Text

    def short_form(self) -> str:
        """The name in files, logs and tables, and the op's `config` argument."""
        tile = f"({self.dtype.name}, {self.d_head}, {self.B_r}, {self.B_c}, {self.n_warps})"
        return f"{tile}: {'+'.join(self._words())}"

    def _words(self) -> list[str]:
        counts = (self.Q_mma_load_K_tiles, self.K_mma_load_K_tiles, self.V_mma_load_K_tiles)
        words = {
            "async": self.async_copy,
            "eager": self.eager_load_blocks,
            "swizzled": self.swizzled,
            "load_{}_{}_{}_tiles".format(*counts): True,
            "buffer": self.mma_double_buffer_loads,
            "opt_softmax": self.optimized_softmax,
            f"stages_{self.kv_stages}": self.kv_stages > 1,
        }
        return [word for word, present in words.items() if present]

    def __str__(self) -> str:
        return self.short_form()

    @classmethod
    def parse(cls, text: str) -> FlashForwardKernelConfig:
        """The config named by a short form (alone, or the first cell of a `|` table row), by a
        demangled kernel symbol as nvcc, cu++filt and ncu print it, or by `to_cpp_struct()`.

        Raises ValueError naming the offending text.
        """
        return cls(**parsing.parse_fields(text, FIELDS))

    def to_cpp_struct(self) -> str:
        """The C++ literal, with designated initialisers."""
        values = ", ".join(f".{name} = {_cpp(getattr(self, name))}" for name in FIELDS)
        return f"FlashForwardKernelConfig{{{values}}}"

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON can hold them: dtype by name. `from_dict` is the inverse."""
        return dataclasses.asdict(self) | {"dtype": self.dtype.name}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FlashForwardKernelConfig:
        """Raises ValueError for an unknown dtype name, TypeError for unknown or missing fields."""
        dtype = values.get("dtype")
        if not isinstance(dtype, str) or dtype not in DType.__members__:
            raise ValueError(f"unknown dtype {dtype!r}: expected {' or '.join(DType.__members__)}")
        return cls(**values | {"dtype": DType[dtype]})

    def replace(self, **changes: Any) -> FlashForwardKernelConfig:
        return dataclasses.replace(self, **changes)

    # Legality

    def violations(self, arch: Arch | str | int) -> list[Violation]:
        """The broken rules as (rule, sentence); [] means it can be built and launched on `arch`."""
        return rules.violations(self, Arch.of(arch))

    def warnings(self, arch: Arch | str | int) -> list[Violation]:
        """What is legal on `arch` but likely slow: a predicted register spill."""
        return rules.warnings(self, Arch.of(arch))

    def canonical(self) -> FlashForwardKernelConfig:
        """The one config that stands for all that compile to the same kernel as this one.

        One unbuffered stage that covers the K dimension is the whole block before the GEMM (for K
        only beside Q = 0: otherwise a stage of Q comes with it), and where every operand is loaded
        whole there is nothing to double-buffer. Legal exactly where `self` is legal.
        """
        config = self
        buffered = self.mma_double_buffer_loads
        if not buffered and config.V_mma_load_K_tiles * 8 == config.B_c:
            config = config.replace(V_mma_load_K_tiles=0)
        kept = not buffered and config.Q_mma_load_K_tiles == 0
        if kept and config.K_mma_load_K_tiles * 8 == config.d_head:
            config = config.replace(K_mma_load_K_tiles=0)
        if not any(getattr(config, name) for name in LOAD_COUNTS):
            config = config.replace(mma_double_buffer_loads=False)
        return config

    # Resources

    @property
    def n_threads(self) -> int:
        """Per CTA."""
        return 32 * self.n_warps

    @property
    def smem_bytes(self) -> int:
        """Per CTA: one Q, one K and one V block of 16-bit elements; O reuses Q's space."""
        return (self.B_r + 2 * self.kv_stages * self.B_c) * self.d_head * 2

    def resources(self, arch: Arch | str | int) -> Resources:
        """Registers, shared memory and occupancy on `arch`, as the resource model predicts them."""
        return resources(self, Arch.of(arch))

    def num_ctas_per_sm(self, arch: Arch | str | int) -> int:
        """CTAs resident on one SM by the resource model, what __launch_bounds__ is given."""
        return self.resources(arch).num_ctas_per_sm

    # Tuning

    def should_autotune_config(self) -> bool:
        """Whether a tuning run over the space of the `tune` set tries this config.

        Left out: what `violations` refuses of the copy schedule and of unequal Q and K counts, and
        where Q's registers are known to misfit the tile: kept whole at B_r = 128 (too many) or at
        B_c = 32 (too many for a third CTA per SM), reloaded for each block at B_r = B_c = 64.
        """
        Q = self.Q_mma_load_K_tiles
        if not self.async_copy and self.eager_load_blocks:
            return False
        if Q not in (0, self.K_mma_load_K_tiles):
            return False
        if self.B_r == 64:
            if self.n_warps == 8:
                return False
            if self.B_c == 32 and Q == 0:
                return False
            if self.B_c == 64 and Q != 0:
                return False
        return not (self.B_r == 128 and Q == 0)


def check_field(name: str, value: Any) -> None:
    """Raises TypeError or ValueError where a config cannot hold `value` in field `name`."""
    kind = FIELDS[name]
    if type(value) is not kind:
        raise TypeError(f"{name} must be {kind.__name__}, not {value!r}")
    least = 0 if name in LOAD_COUNTS else 1
    if kind is int and value < least:
        raise ValueError(f"{name} = {value}: expected at least {least}")


def _cpp(value: DType | bool | int) -> str:
    if isinstance(value, DType):
        return f"DType::{value.name}"
    return str(value).lower()


# Name -> type, in field order.
FIELDS: dict[str, type] = get_type_hints(FlashForwardKernelConfig)
LOAD_COUNTS = ("Q_mma_load_K_tiles", "K_mma_load_K_tiles", "V_mma_load_K_tiles")
