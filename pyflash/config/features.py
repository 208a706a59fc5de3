"""What a problem needs beyond plain attention, and the combinations that kernels are built for.

Feature combinations are compiled separately, so that a mask cannot slow the unmasked kernel. The
struct of the same fields in C++ is `ForwardFeatures` in cute_kernels/features.h.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pyflash.config.words import shown, type_name

PLAIN = "plain"


@dataclass(frozen=True, order=True, slots=True)
class Features:
    """What a kernel can do, or what a problem needs."""

    right_window: bool = False  # keys end at a diagonal: causal, window_right
    left_window: bool = False  # keys start at a diagonal: window_left
    predicated_head_dim: bool = False  # a head_dim below the config's d_head
    softcap: bool = False
    sinks: bool = False

    def __str__(self) -> str:
        """The names joined by +, in the order of the fields; "plain" for none."""
        return "+".join(name for name in NAMES if getattr(self, name)) or PLAIN

    @classmethod
    def parse(cls, text: str) -> Features:
        """The inverse of `str`, for names in any order.

        Raises ValueError naming a word that is unknown or repeated, TypeError for what is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"features are {type_name(text)}: expected Features or their names")
        if text.strip() == PLAIN:
            return cls()
        words = [word.strip() for word in text.split("+")]
        for i, word in enumerate(words):
            if word not in NAMES:
                raise ValueError(
                    f"unknown feature {shown(word)} in {shown(text)}: expected {PLAIN}, or some of "
                    f"{', '.join(NAMES)} joined by +"
                )
            if word in words[:i]:
                raise ValueError(f"{word!r} is repeated in {shown(text)}")
        return cls(**dict.fromkeys(words, True))

    @classmethod
    def of_kernel(cls, symbol: str) -> Features:
        """Those of a kernel, by its mangled name. Raises ValueError for any other symbol."""
        match = re.search(r"15ForwardFeatures((?:Lb[01]E)*)E", symbol)
        if not match:
            raise ValueError(f"{symbol!r} is not the mangled name of a kernel with ForwardFeatures")
        return cls(*(value == "1" for value in re.findall("Lb([01])E", match[1])))

    @classmethod
    def of(cls, features: Features | str) -> Features:
        return features if isinstance(features, Features) else cls.parse(features)

    def covers(self, needed: Features) -> bool:
        """Whether a kernel with these features computes a problem that needs `needed`."""
        return all(getattr(self, name) or not getattr(needed, name) for name in NAMES)

    def to_cpp(self) -> str:
        """The C++ literal."""
        names = ", ".join(f".{name} = true" for name in NAMES if getattr(self, name))
        return f"ForwardFeatures{{{names}}}"


NAMES = tuple(field.name for field in dataclasses.fields(Features))

# The combinations that are built by default, smallest first. A problem runs in the first that
# covers what it needs.
BUILT = tuple(
    map(
        Features.parse,
        (
            "plain",
            "right_window",
            "right_window+left_window",
            "predicated_head_dim",
            "right_window+predicated_head_dim",
            "right_window+softcap",
            "right_window+left_window+sinks",
            "right_window+left_window+predicated_head_dim+softcap+sinks",
        ),
    )
)


# The combinations that the emulator runs: every code path of a kernel in fewer instantiations,
# because the host compiler takes seconds for each.
EMULATED = tuple(
    map(
        Features.parse,
        (
            "plain",
            "right_window",
            "right_window+left_window",
            "predicated_head_dim",
            "right_window+left_window+predicated_head_dim+softcap+sinks",
        ),
    )
)


def in_dispatch_order(features: Features | str | Iterable[Features | str]) -> tuple[Features, ...]:
    """Each combination once, those with fewer features first."""
    if isinstance(features, Features | str):
        features = [features]
    if not isinstance(features, Iterable):
        raise TypeError(f"features are {type_name(features)}: expected Features or their names")
    unique = dict.fromkeys(map(Features.of, features))
    return tuple(sorted(unique, key=lambda f: sum(getattr(f, name) for name in NAMES)))


def first_covering(
    needed: Features | str, built: Iterable[Features | str] = BUILT
) -> Features | None:
    """The combination of `built` that a problem runs in: the first that covers `needed`."""
    needed = Features.of(needed)
    return next((f for f in map(Features.of, built) if f.covers(needed)), None)
