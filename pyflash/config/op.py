"""An op: a computation that the kernels of families run, with every fact about it that other rooms
ask for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pyflash.config.words import shown, type_name

if TYPE_CHECKING:
    from typing_extensions import Self

PLAIN = "plain"


class KernelFeatures:
    """What a kernel of an op can do, or what a problem needs: the base of each op's features.

    Those of an op are a `@dataclass(frozen=True, order=True, slots=True)` of bools, all False by
    default. Combinations are compiled separately, so that a feature costs nothing in the kernels
    without it.
    """

    __slots__ = ()

    struct: ClassVar[str]  # of the same fields in C++
    exact: ClassVar[frozenset[str]] = frozenset()  # whose kernels run no problem without them

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(cls))

    def __str__(self) -> str:
        """The names joined by +, in the order of the fields; "plain" for none."""
        return "+".join(self._set()) or PLAIN

    def _set(self) -> list[str]:
        return [name for name in self.names() if getattr(self, name)]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`, for names in any order.

        Raises ValueError naming a word that is unknown or repeated, TypeError for what is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"features are {type_name(text)}: expected Features or their names")
        if text.strip() == PLAIN:
            return cls()
        words = [word.strip() for word in text.split("+")]
        for i, word in enumerate(words):
            if word not in cls.names():
                raise ValueError(
                    f"unknown feature {shown(word)} in {shown(text)}: expected {PLAIN}, or some of "
                    f"{', '.join(cls.names())} joined by +"
                )
            if word in words[:i]:
                raise ValueError(f"{word!r} is repeated in {shown(text)}")
        return cls(**dict.fromkeys(words, True))

    @classmethod
    def of_kernel(cls, symbol: str) -> Self:
        """The features of a kernel, by its mangled name. Raises ValueError for any other symbol."""
        match = re.search(rf"{len(cls.struct)}{cls.struct}((?:Lb[01]E)*)E", symbol)
        if not match:
            raise ValueError(f"{symbol!r} is not the mangled name of a kernel with {cls.struct}")
        return cls(*(value == "1" for value in re.findall("Lb([01])E", match[1])))

    @classmethod
    def of(cls, features: KernelFeatures | str) -> Self:
        """The features themselves, or those with these names. Raises as `parse` does."""
        if isinstance(features, cls):
            return features
        return cls.parse(str(features) if isinstance(features, KernelFeatures) else features)

    @classmethod
    def in_dispatch_order(
        cls, features: KernelFeatures | str | Iterable[KernelFeatures | str]
    ) -> tuple[Self, ...]:
        """Each combination once, those with fewer features first."""
        unique = dict.fromkeys(map(cls.of, combinations(features)))
        return tuple(sorted(unique, key=lambda f: len(f._set())))

    def covers(self, needed: Self) -> bool:
        """Whether a kernel with these features computes a problem that needs `needed`."""
        has, needs = set(self._set()), set(needed._set())
        return needs <= has and not (has - needs) & self.exact

    def to_cpp(self) -> str:
        """The C++ literal."""
        return f"{self.struct}{{{', '.join(f'.{name} = true' for name in self._set())}}}"


def combinations(
    features: KernelFeatures | str | Iterable[KernelFeatures | str],
) -> list[KernelFeatures | str]:
    """One or several combinations as a list. Raises TypeError for another type."""
    if isinstance(features, KernelFeatures | str):
        return [features]
    if not isinstance(features, Iterable):
        raise TypeError(f"features are {type_name(features)}: expected Features or their names")
    return list(features)


@dataclass(frozen=True, eq=False)
class Op:
    """A computation: what its problems need of kernels, and where its C++ is."""

    name: str
    struct: str  # its type in C++, in pyflash, which `header` defines: see cute_kernels/ops.h
    header: str
    features: type[KernelFeatures]
    # The combinations that kernels are built for by default, smallest first: a problem runs in the
    # first that covers what it needs.
    built: Sequence[KernelFeatures]
    # The combinations that the emulator runs: every code path of a kernel in fewer instantiations,
    # because the host compiler takes seconds for each.
    emulated: Sequence[KernelFeatures]

    def __str__(self) -> str:
        return self.name
