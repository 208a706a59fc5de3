"""The op `BACKWARD`, the gradients of q, k and v: what its problems need beyond plain attention,
and the combinations that its kernels are built for.

The struct of the same fields in C++ is `BackwardFeatures` in cute_kernels/backward.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyflash.config.op import KernelFeatures, Op


@dataclass(frozen=True, order=True, slots=True)
class BackwardFeatures(KernelFeatures):
    """What a kernel can do, or what a problem needs. Chunks are two windows. A head_dim
    below the config's d_head, and sinks, which are in lse, need nothing."""

    struct: ClassVar[str] = "BackwardFeatures"
    exact: ClassVar[frozenset[str]] = frozenset({"softcap", "deterministic", "dropout"})

    right_window: bool = False  # keys end at a diagonal: causal, window_right
    left_window: bool = False  # keys start at a diagonal: window_left
    packed: bool = False
    softcap: bool = False
    alibi_slopes: bool = False
    deterministic: bool = False  # sums of dq in one order
    dropout: bool = False

    @property
    def changes_P(self) -> bool:
        """Whether dS is computed from something other than P, which takes more registers."""
        return self.softcap or self.dropout


_UNCAPPED = "right_window+left_window+packed+alibi_slopes"
_CAPPED = "right_window+left_window+packed+softcap"
# The combinations that are built by default, smallest first. A problem runs in the first that
# covers what it needs.
_BUILT = (
    "plain",
    "right_window",
    "right_window+left_window",
    "right_window+packed",
    _UNCAPPED,
    "right_window+softcap",
    _CAPPED,
    "right_window+deterministic",
    f"{_UNCAPPED}+deterministic",
    f"{_CAPPED}+deterministic",
)
# Those that the emulator runs: every code path in fewer instantiations.
_EMULATED = (
    "plain",
    "right_window",
    _UNCAPPED,
    _CAPPED,
    f"{_UNCAPPED}+deterministic",
    f"{_CAPPED}+deterministic",
)

# Those that configs of the set `dropout` are built with.
DROPOUT = tuple(
    map(
        BackwardFeatures.parse,
        (
            "dropout",
            "right_window+dropout",
            f"{_UNCAPPED}+dropout",
            f"{_CAPPED}+dropout",
            f"{_UNCAPPED}+deterministic+dropout",
            f"{_CAPPED}+deterministic+dropout",
        ),
    )
)
# The same for the emulator, in a library of its own.
EMULATED_DROPOUT = DROPOUT[-4:]

BACKWARD = Op(
    name="backward",
    struct="Backward",
    header="cute_kernels/backward.h",
    features=BackwardFeatures,
    built=tuple(map(BackwardFeatures.parse, _BUILT)),
    emulated=tuple(map(BackwardFeatures.parse, _EMULATED)),
)
