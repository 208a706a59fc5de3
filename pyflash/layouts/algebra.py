"""Layouts: functions from coordinates to offsets, and their algebra.

    K = tile_to_shape(composition(Swizzle(3, 3, 3), Layout((8, 64), (64, 1))), (64, 128))
    K(5, 16), str(K)       # an offset in elements; as CuTe prints it

A thin face over `pycute`, CuTe's layout algebra in Python, which comes with the nvidia-cutlass
wheel: what it lacks is tiling to a shape, swizzles that go through every operation, and pictures.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyflash.third_party.cutlass import pycute
from pyflash.ui.notebook import view

IntTuple = Any  # an int, or a tuple of IntTuples


@dataclass(frozen=True, slots=True)
class Swizzle:
    """`Swizzle<bits, base, shift>`: offsets whose `bits` bits above `base` are xored with those
    `shift` higher. Raises ValueError where these would overlap."""

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise ValueError(
                f"{self}: expected bits and base of at least 0, and a shift of at least bits"
            )

    def __call__(self, offset: int) -> int:
        return pycute().Swizzle(self.bits, self.base, self.shift)(offset)

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"


@dataclass(frozen=True, slots=True, init=False)
class Layout:
    """Shape and stride, and a swizzle of the offsets. Strides are in elements; without them the
    first coordinate is the fastest."""

    shape: IntTuple
    stride: IntTuple
    swizzle: Swizzle | None

    def __init__(
        self, shape: IntTuple, stride: IntTuple | None = None, swizzle: Swizzle | None = None
    ) -> None:
        if stride is None:
            stride = pycute().prefix_product(shape)
        if not _congruent(shape, stride):
            raise ValueError(f"shape {shape} and stride {stride} are not alike")
        if swizzle is not None and swizzle.bits == 0:
            swizzle = None
        for name, value in (("shape", shape), ("stride", stride), ("swizzle", swizzle)):
            object.__setattr__(self, name, value)

    @property
    def plain(self) -> Layout:
        """Without the swizzle."""
        return Layout(self.shape, self.stride)

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return pycute().product(self.shape)

    @property
    def cosize(self) -> int:
        """One more than the largest offset."""
        return max(self.offsets(), default=-1) + 1

    @property
    def rank(self) -> int:
        return len(self.shape) if isinstance(self.shape, tuple) else 1

    @property
    def extents(self) -> tuple[int, ...]:
        """The product of each mode's shape."""
        modes = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        return tuple(pycute().product(mode) for mode in modes)

    def __call__(self, *coordinate: IntTuple) -> int:
        """The offset of a coordinate: an index into all, or one of each mode."""
        point = coordinate[0] if len(coordinate) == 1 else coordinate
        offset = pycute().crd2idx(point, self.shape, self.stride)
        return self.swizzle(offset) if self.swizzle else offset

    def offsets(self) -> Iterator[int]:
        """The offset of every index, indices ascending."""
        return (self(i) for i in range(self.size))

    def __str__(self) -> str:
        """As CuTe prints it, but for the underscores of static integers."""
        plain = f"{_text(self.shape)}:{_text(self.stride)}"
        return f"{self.swizzle} o 0 o {plain}" if self.swizzle else plain

    def _repr_svg_(self) -> str:
        return view(self)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """A layout as CuTe prints it: "Sw<3,3,3> o 0 o ((_8,_8),_64):((_64,_512),_1)".

        A pointer's place is taken for 0. Raises ValueError naming the text.
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"no layout: {text!r}")
        swizzle = Swizzle(*map(int, found["swizzle"].split(","))) if found["swizzle"] else None
        shape, stride = (_int_tuple(found[name]) for name in ("shape", "stride"))
        return cls(shape, stride, swizzle)


_TEXT = re.compile(
    r"(?:Sw<(?P<swizzle>[\d,-]+)> o (?:_?0|smem_ptr\[\w+\]\(\w+\)) o )?"
    r"(?P<shape>[()\d,_]+):(?P<stride>[()\d,_-]+)"
)


def _int_tuple(text: str) -> IntTuple:
    digits = text.replace("_", "")
    if not re.fullmatch(r"[()\d,-]+", digits):
        raise ValueError(f"no shape or stride: {text!r}")
    try:
        return ast.literal_eval(digits.replace(")", ",)"))  # a tuple of one, too
    except (SyntaxError, ValueError):
        raise ValueError(f"no shape or stride: {text!r}") from None


def _text(value: IntTuple) -> str:
    return f"({','.join(map(_text, value))})" if isinstance(value, tuple) else str(value)


def _congruent(shape: IntTuple, stride: IntTuple) -> bool:
    if isinstance(shape, tuple) != isinstance(stride, tuple):
        return False
    if not isinstance(shape, tuple):
        return True
    return len(shape) == len(stride) and all(map(_congruent, shape, stride))


def _pycute(layout: Layout) -> Any:
    return pycute().Layout(layout.shape, layout.stride)


def _own(layout: Any, swizzle: Swizzle | None = None) -> Layout:
    return Layout(layout.shape, layout.stride, swizzle)


def composition(first: Layout | Swizzle, second: Layout) -> Layout:
    """`second`, then `first`: (first o second)(c) = first(second(c)).

    Raises ValueError where no layout does that: the one cannot be divided by the other, or `second`
    overlaps itself, or a swizzle would come before another layout.
    """
    if isinstance(first, Swizzle):
        if second.swizzle:
            raise ValueError(f"{first} after {second}: a layout has one swizzle")
        return Layout(second.shape, second.stride, first)
    if second.swizzle:
        raise ValueError(f"{first} after {second}: the swizzle has to come last")
    try:
        composed = pycute().composition(_pycute(first.plain), _pycute(second))
    except AssertionError:
        raise ValueError(f"{first} cannot be composed with {second}: no even division") from None
    result = _own(composed, first.swizzle)
    # NOTE: pycute, as CuTe, takes each mode by itself, which is wrong where their offsets carry.
    if any(result(i) != first(second(i)) for i in range(second.size)):
        raise ValueError(f"{first} cannot be composed with {second}: its modes overlap")
    return result


def tile_to_shape(
    block: Layout, shape: tuple[int, ...], order: tuple[int, ...] | None = None
) -> Layout:
    """`block` again and again until it has `shape`, the first mode's tiles next to each other; with
    `order`, that of rank 0 first.

    Raises ValueError where the block does not divide the shape.
    """
    extents = block.extents
    if block.rank != len(shape) or any(n % m for n, m in zip(shape, extents, strict=True)):
        raise ValueError(f"a block of {extents} does not tile {shape}")
    counts = tuple(n // m for n, m in zip(shape, extents, strict=True))
    strides = [0] * len(counts)
    step = 1
    for _, mode in sorted(zip(order or range(len(counts)), range(len(counts)), strict=True)):
        strides[mode], step = step, step * counts[mode]
    block_modes = [_pycute(block.plain)[i] for i in range(block.rank)]
    product = pycute().logical_product(
        _pycute(block.plain), pycute().Layout(counts, tuple(strides))
    )
    tiles = product[1]
    modes = [
        pycute().Layout((mode.shape, tile.shape), (mode.stride, tile.stride))
        for mode, tile in zip(block_modes, (tiles[i] for i in range(len(counts))), strict=True)
    ]
    return _own(pycute().make_layout(*modes), block.swizzle)


def zipped_divide(layout: Layout, tiler: tuple[int, ...]) -> Layout:
    """((tile), (rest)) of a layout cut into tiles.

    Raises ValueError where they do not divide it.
    """
    try:
        divided = pycute().zipped_divide(_pycute(layout.plain), tuple(map(pycute().Layout, tiler)))
    except AssertionError:
        raise ValueError(f"{layout} cannot be divided by {tiler}") from None
    return _own(divided, layout.swizzle)


def thread_values(threads: Layout, values: Layout) -> Layout:
    """(thread, value) to the index in their tile, as CuTe's make_tiled_copy spreads it: every
    thread of `threads` owns a block of `values`. Both map coordinates of the tile to a number."""
    rank = max(threads.rank, values.rank)
    a, b = (_padded(layout, rank) for layout in (values, threads))
    product = pycute().logical_product(a, b)
    modes = [
        pycute().Layout((v.shape, t.shape), (v.stride, t.stride))
        for v, t in zip(_modes(product[0], rank), _modes(product[1], rank), strict=True)
    ]
    # Tile coordinates -> value + n_values * thread; its inverse tells where each pair is.
    inverse = pycute().right_inverse(pycute().make_layout(*modes))
    split = pycute().composition(
        inverse, pycute().Layout((threads.size, values.size), (values.size, 1))
    )
    return _own(split)


def _padded(layout: Layout, rank: int) -> Any:
    modes = _modes(_pycute(layout.plain), layout.rank)
    return pycute().make_layout(*modes, *[pycute().Layout(1, 0)] * (rank - layout.rank))


def _modes(layout: Any, rank: int) -> list[Any]:
    return [layout[i] for i in range(rank)]


def partition(layout: Layout, owners: Layout) -> Layout:
    """(thread, value) to the offset in `layout`: what each thread of `owners` (`thread_values`, or
    a copy's or MMA's thread-value layout) touches of it."""
    return composition(layout, owners)
