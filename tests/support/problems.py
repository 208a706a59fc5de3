"""Inputs of attention for tests: regular shapes, and those that break kernels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyflash.config import KernelConfig
from pyflash.op.reference import Expected, expect, expect_varlen
from pyflash.op.selection import TORCH_DTYPES

Inputs = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Shape:
    """Extents that a config leaves open, and the memory layout of q, k and v."""

    name: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    heads: int
    layout: str = "contiguous"
    heads_kv: int | None = None  # None: as many as heads

    def __str__(self) -> str:
        return self.name

    @property
    def kv(self) -> int:
        return self.heads if self.heads_kv is None else self.heads_kv


class Mask:
    """Options of attention under a name."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.name, *sorted(self.options.items())


@dataclass(frozen=True)
class Packed:
    """Sequences of these lengths, one after the other."""

    name: str
    seqlens_q: tuple[int, ...]
    seqlens_k: tuple[int, ...]
    heads: int
    heads_kv: int

    def __str__(self) -> str:
        return self.name


SHAPES = [
    Shape("square", 2, 128, 128, 3),
    Shape("many_blocks", 1, 512, 640, 2),
    Shape("prime_lengths", 2, 113, 127, 3),
    Shape("long_q_short_k", 1, 509, 67, 1),
    Shape("one_of_everything", 1, 1, 1, 1),
    Shape("one_query", 1, 1, 257, 2),
    Shape("one_key", 2, 257, 1, 1),
    Shape("shorter_than_a_tile", 2, 17, 5, 2),
    Shape("around_tile_edges", 1, 65, 63, 2),
    Shape("past_tile_edges", 1, 127, 129, 2),
    Shape("nothing_to_attend", 2, 33, 0, 2),
    Shape("nan_past_the_end", 2, 113, 127, 2, "nan_around"),
    Shape("nan_past_short_rows", 2, 3, 9, 2, "nan_around"),
    Shape("packed_qkv", 2, 131, 131, 3, "packed"),
    Shape("heads_first", 2, 131, 67, 3, "heads_first"),
    Shape("columns_of_wider_rows", 2, 131, 67, 3, "sliced"),
    Shape("one_kv_for_all_batches", 3, 131, 67, 2, "expanded"),
    Shape("odd_strides_of_size_1", 1, 131, 67, 1, "odd_strides"),
]
NON_CONTIGUOUS = [shape for shape in SHAPES if shape.layout != "contiguous"]
EMPTY = [
    Shape("no_batch", 0, 5, 7, 2),
    Shape("no_queries", 2, 0, 7, 2),
    Shape("no_heads", 2, 5, 7, 0),
]

GQA = [
    Shape("gqa_3", 2, 131, 67, 6, heads_kv=2),
    Shape("mqa", 2, 67, 131, 4, heads_kv=1),
    Shape("gqa_decode", 3, 1, 257, 8, heads_kv=2),
    Shape("mqa_decode", 2, 1, 129, 71, heads_kv=1),
    Shape("gqa_few_queries", 2, 3, 517, 4, heads_kv=2),
    Shape("gqa_of_wider_rows", 2, 131, 67, 4, "sliced", heads_kv=2),
    Shape("gqa_nan_past_the_end", 2, 113, 127, 4, "nan_around", heads_kv=2),
    Shape("gqa_one_kv_for_all_batches", 3, 131, 67, 4, "expanded", heads_kv=2),
]

NO_MASK = Mask("full")
MASKS = [
    Mask("causal", causal=True),
    Mask("causal_window", causal=True, window_left=37),
    Mask("diagonal", window_left=0, window_right=0),
    Mask("left", window_left=70),
    Mask("right", window_right=40),
    Mask("both", window_left=33, window_right=65),
    Mask("one_wider_than_any_length", window_left=1 << 40, window_right=1 << 40),
    Mask("chunks", attention_chunk=48),
    Mask("causal_chunks_and_a_window", causal=True, window_left=40, attention_chunk=50),
    Mask("softcap", softcap=0.7),
    Mask("causal_softcap", causal=True, softcap=20.0),
    Mask("window_softcap", window_left=50, window_right=3, softcap=30.0),
]

PACKED = [
    Packed("equal", (64, 64), (64, 64), 2, 2),
    Packed("primes", (113, 7, 131), (127, 67, 5), 3, 3),
    Packed("empty_ones", (0, 33, 0, 17, 0), (5, 0, 0, 129, 7), 2, 2),
    Packed("packed_gqa", (65, 1, 200), (63, 300, 200), 6, 2),
    Packed("packed_decode", (1, 1, 1), (257, 3, 130), 8, 2),
    Packed("one_sequence", (150,), (90,), 4, 1),
    Packed("only_empty", (0, 0), (0, 0), 2, 2),
    Packed("no_keys", (5, 9), (0, 0), 2, 1),
    Packed("no_sequences", (), (), 2, 2),
]


def make_inputs(
    shape: Shape, dtype: torch.dtype, d_head: int, device: str = "cpu", seed: int = 0
) -> Inputs:
    """q, k and v of normal random numbers."""
    generator = torch.Generator(device).manual_seed(seed)

    def randn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device).to(dtype)

    return _LAYOUTS[shape.layout](shape, d_head, randn)


def growing(inputs: Inputs) -> Inputs:
    """The same with scores that grow from the last keys to the first, in the order in which kernels
    look at them: the rows' maxima grow by far more than a threshold, again and again."""
    q, k, v = inputs
    factors = torch.linspace(40, 1, k.shape[1], device=k.device)
    return q, (k * factors[:, None, None]).to(k.dtype), v


def rising(inputs: Inputs) -> Inputs:
    """The same with scores that rise by 11.3, 16.3 as exponents of 2, from the last keys to the
    first: for long by less than a threshold, and by more than exponentials in fp16 can."""
    q, k, v = (x.clone() for x in inputs)
    q[..., 0] = q.shape[-1] ** 0.5
    k[..., 0] = torch.linspace(11.3, 0, k.shape[1], device=k.device)[:, None]
    return q, k, v


def leaping(inputs: Inputs) -> Inputs:
    """The same with scores that leap, at a key in the middle, by more than exponentials in fp32
    can: up for even queries and down for odd ones, of another head the other way around."""
    q, k, v = (x.clone() for x in inputs)
    queries, heads = torch.arange(q.shape[1])[:, None], torch.arange(q.shape[2])
    q[..., 0] = ((1 - 2 * ((queries + heads) % 2)) * q.shape[-1] ** 0.5).to(q)
    k[..., 0] = 0
    k[:, : k.shape[1] // 2, :, 0] = 200
    return q, k, v


def growing_below_zero(inputs: Inputs) -> Inputs:
    """The same with scores below 0 alone, the lowest those of the last keys: maxima grow as in
    `growing`, and no score is above 0 when they do."""
    q, k, v = inputs
    factors = torch.linspace(1, 40, k.shape[1], device=k.device)
    return -q.abs(), (k.abs() * factors[:, None, None]).to(k.dtype), v


def near_a_cap(inputs: Inputs) -> Inputs:
    """The same with rows of q from a hundredth to thirty times as large, so that scores are far
    below a cap of tens, near it, and above. All scores of the last head are below 0."""
    q, k, v = inputs
    factors = torch.logspace(-2, 1.5, q.shape[1], device=q.device)
    q = (q * factors[:, None, None]).to(q.dtype)
    k = k.clone()
    q[:, :, -1], k[:, :, -1] = -q[:, :, -1].abs(), k[:, :, -1].abs()
    return q, k, v


def far_below_a_cap(inputs: Inputs) -> Inputs:
    """The same with scores that are small for the last 128 keys, and for those before beyond minus
    twice a cap of tens, where two terms of tanh's series are positive and large."""
    q, k, v = inputs
    q, k = q.abs() + 0.5, 0.01 * k
    k[:, :-128] = -5.0
    return q, k, v


def make_packed(
    packed: Packed, dtype: torch.dtype, d_head: int, device: str = "cpu", seed: int = 0
) -> tuple[Any, ...]:
    """The positional arguments of `attention_varlen`: q, k and v of normal random numbers, between
    rows of NaN; cu_seqlens_q and cu_seqlens_k; the largest lengths."""
    generator = torch.Generator(device).manual_seed(seed)

    def randn(total: int, heads: int) -> Tensor:
        guard = 130
        rows = torch.full((total + 2 * guard, heads, d_head), torch.nan, dtype=dtype, device=device)
        size = (total, heads, d_head)
        rows[guard : guard + total] = torch.randn(size, generator=generator, device=device)
        return rows[guard : guard + total]

    def cumulated(lengths: tuple[int, ...]) -> Tensor:
        starts = list(itertools.accumulate(lengths, initial=0))
        return torch.tensor(starts, dtype=torch.int32, device=device)

    lengths = (packed.seqlens_q, packed.seqlens_k)
    total_q, total_k = map(sum, lengths)
    return (
        randn(total_q, packed.heads),
        randn(total_k, packed.heads_kv),
        randn(total_k, packed.heads_kv),
        *map(cumulated, lengths),
        *(max(x, default=0) for x in lengths),
    )


@functools.cache
def inputs_and_expected(
    shape: Shape,
    dtype: torch.dtype,
    d_head: int,
    device: str = "cpu",
    mask: Mask = NO_MASK,
) -> tuple[Inputs, Expected]:
    """Cached: callers must not write to them."""
    inputs = make_inputs(shape, dtype, d_head, device)
    return inputs, expect(*inputs, **mask.options)


@functools.cache
def packed_and_expected(
    packed: Packed,
    dtype: torch.dtype,
    d_head: int,
    device: str = "cpu",
    mask: Mask = NO_MASK,
) -> tuple[tuple[Any, ...], Expected]:
    """Cached: callers must not write to them."""
    inputs = make_packed(packed, dtype, d_head, device)
    return inputs, expect_varlen(*inputs[:5], **mask.options)


def problem_of(
    shape: Shape, config: KernelConfig, device: str = "cpu", mask: Mask = NO_MASK
) -> tuple[Inputs, Expected]:
    return inputs_and_expected(shape, TORCH_DTYPES[config.dtype], config.d_head, device, mask)


def make_sinks(heads: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Tensor:
    """Normal random numbers, so that a sink weighs as much as a key."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(heads, generator=generator, device=device).to(dtype)


@contextmanager
def new_memory_is_nan(device: str = "cpu") -> Iterator[None]:
    """New tensors hold NaN, so that an element that is never written is seen."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(1000, device=device).isnan().all()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


Randn = Callable[..., Tensor]


def _sizes(shape: Shape, d_head: int) -> list[tuple[int, int, int, int]]:
    kv = (shape.batch, shape.seqlen_k, shape.kv, d_head)
    return [(shape.batch, shape.seqlen_q, shape.heads, d_head), kv, kv]


def _contiguous(shape: Shape, d_head: int, randn: Randn) -> Inputs:
    return tuple(randn(*size) for size in _sizes(shape, d_head))


def _nan_around(shape: Shape, d_head: int, randn: Randn) -> Inputs:
    """Rows of NaN before and behind every sequence, more than a tile of them."""
    guard = 130

    def surrounded(batch: int, seqlen: int, heads: int, d_head: int) -> Tensor:
        values = randn(batch, seqlen, heads, d_head)
        storage = values.new_full((batch, seqlen + 2 * guard, heads, d_head), torch.nan)
        storage[:, guard : guard + seqlen] = values
        return storage[:, guard : guard + seqlen]

    return tuple(surrounded(*size) for size in _sizes(shape, d_head))


def _packed(shape: Shape, d_head: int, randn: Randn) -> Inputs:
    return randn(shape.batch, shape.seqlen_q, 3, shape.heads, d_head).unbind(2)


def _heads_first(shape: Shape, d_head: int, randn: Randn) -> Inputs:
    return tuple(randn(b, h, s, d).transpose(1, 2) for b, s, h, d in _sizes(shape, d_head))


def _sliced(shape: Shape, d_head: int, randn: Randn) -> Inputs:
    return tuple(randn(b, s, h, d + 24)[..., 8 : d + 8] for b, s, h, d in _sizes(shape, d_head))


def _expanded(shape: Shape, d_head: int, randn: Randn) -> Inputs:
    q, k, v = _sizes(shape, d_head)
    return (randn(*q), randn(1, *k[1:]).expand(k), randn(1, *v[1:]).expand(v))


def _odd_strides(shape: Shape, d_head: int, randn: Randn) -> Inputs:
    """Strides of 3 and 5 elements where an extent of 1 makes them mean nothing."""
    assert shape.batch == shape.heads == 1
    return tuple(randn(*size).as_strided(size, (3, d_head, 5, 1)) for size in _sizes(shape, d_head))


_LAYOUTS: dict[str, Callable[[Shape, int, Randn], Inputs]] = {
    "contiguous": _contiguous,
    "nan_around": _nan_around,
    "packed": _packed,
    "heads_first": _heads_first,
    "sliced": _sliced,
    "expanded": _expanded,
    "odd_strides": _odd_strides,
}
