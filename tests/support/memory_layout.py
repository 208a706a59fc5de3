"""Random places of a tensor in memory: any order of the dimensions, NaN between and around them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie, a number for each of its dimensions."""

    order: tuple[int, ...]  # the dimensions from the outermost to the innermost
    before: tuple[int, ...]  # what lies in front of the tensor, in elements of the dimension
    after: tuple[int, ...]
    step: tuple[int, ...]  # from one element of the dimension to the next
    expanded: bool = False  # one first row or batch in the place of all
    odd_strides: bool = False  # 3 elements, where an extent of 1 makes a stride mean nothing

    def __str__(self) -> str:
        padding = list(zip(self.before, self.after, strict=True))
        named = [f"order {self.order}", f"padding {padding}", f"step {self.step}"]
        named += [name for name in ("expanded", "odd_strides") if getattr(self, name)]
        return f"({', '.join(named)})"

    def place(self, values: Tensor) -> Tensor:
        """A tensor of these values; all else in its memory is NaN."""
        source = values[:1] if self.expanded else values
        extents = [
            before + step * extent + after
            for before, step, extent, after in zip(
                self.before, self.step, source.shape, self.after, strict=True
            )
        ]
        memory = source.new_full([extents[dim] for dim in self.order], torch.nan)
        inverse = [self.order.index(dim) for dim in range(len(self.order))]
        view = memory.permute(inverse)
        for dim, extent in enumerate(source.shape):
            start = self.before[dim]
            view = view[
                (slice(None),) * dim
                + (slice(start, start + extent * self.step[dim], self.step[dim]),)
            ]
        view.copy_(source)
        view = view.expand(values.shape)
        if not self.odd_strides:
            return view
        strides = [
            3 if n == 1 else stride for n, stride in zip(view.shape, view.stride(), strict=True)
        ]
        return view.as_strided(view.shape, [*strides[:-1], view.stride(-1)])


def draw_layout(rng: random.Random, n_dims: int) -> Layout:
    """A layout of (batch, row, head, column), or, with 3 dimensions, of (row, head, column)."""
    order = list(range(n_dims))
    nothing = (0,) * n_dims
    if rng.random() < 0.3:
        return Layout(tuple(order), nothing, nothing, (1,) * n_dims)
    if rng.random() < 0.4:
        order = [*rng.sample(order[:-1], n_dims - 1), n_dims - 1]
    kinds = [_NEW_BATCHES, _NEW_ROWS, _NEW_HEADS, _NEW_COLUMNS][4 - n_dims :]

    def padding() -> tuple[int, ...]:
        return tuple(rng.choice(sizes) if rng.random() < 0.3 else 0 for sizes in kinds)

    steps = [2 if rng.random() < 0.08 else 1 for _ in order[:-1]]
    return Layout(
        tuple(order),
        padding(),
        padding(),
        (*steps, 1),
        expanded=n_dims == 4 and rng.random() < 0.1,
        odd_strides=rng.random() < 0.1,
    )


_NEW_BATCHES, _NEW_ROWS, _NEW_HEADS, _NEW_COLUMNS = (1,), (1, 7, 130), (1, 2, 5), (8, 16, 64)
