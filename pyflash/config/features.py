"""What a problem can need beyond plain attention, and the combinations that kernels are built with."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class Features:
    """The fields of `ForwardFeatures` in cute_kernels/features.h, in the same order."""

    right_window: bool = False
    left_window: bool = False
    predicated_head_dim: bool = False
    softcap: bool = False
    sinks: bool = False

    def __str__(self) -> str:
        """Such as right_window+softcap; without any, plain."""
        return "+".join(self._names()) or "plain"

    @classmethod
    def parse(cls, text: str) -> Features:
        """The inverse of str, in any order. Raises ValueError naming an unknown feature."""
        known = [field.name for field in dataclasses.fields(cls)]
        names = [] if text == "plain" else text.split("+")
        for name in names:
            if name not in known:
                raise ValueError(f"unknown feature {name!r}: expected {', '.join(known)}")
        return cls(**dict.fromkeys(names, True))

    def to_cpp(self) -> str:
        """The C++ literal, with designated initialisers."""
        values = ", ".join(f".{name} = true" for name in self._names())
        return f"ForwardFeatures{{{values}}}"

    def covers(self, needed: Features) -> bool:
        """Whether a kernel with these features runs a problem that needs those."""
        return set(needed._names()) <= set(self._names())

    def _names(self) -> list[str]:
        fields = dataclasses.fields(self)
        return [field.name for field in fields if getattr(self, field.name)]


# What every config is built with, smallest first: a problem runs in the first that covers it.
BUILT: tuple[Features, ...] = (
    Features(),
    Features(right_window=True),
    Features(right_window=True, left_window=True),
    Features(predicated_head_dim=True),
    Features(right_window=True, predicated_head_dim=True),
    Features(right_window=True, left_window=True, softcap=True),
    Features(right_window=True, left_window=True, sinks=True),
    Features(True, True, True, True, True),
)

# What a config is emulated with: each feature, and each pair that one code path joins, in few
# instantiations.
EMULATED: tuple[Features, ...] = BUILT
