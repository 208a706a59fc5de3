"""The functions of FlexAttention's documentation and of attention-gym, by name, each written from
its formula, and the same of one pair in plain Python.

Sequences have 72 tokens, of which some examples make a canvas of 8 x 9, video frames or a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from support.combined_variants import combined
from torch import Tensor

from pyflash.variant import Bound, Param, Variant, trace
from pyflash.variant.expr import Node, load, operation
from pyflash.variant.walk import fold

BATCH, HEADS, LENGTH, D_HEAD = 2, 2, 72, 64
EXTENTS = (BATCH, HEADS, LENGTH, LENGTH)


@dataclass(frozen=True)
class Example:
    """score_mod and mask_mod as FlexAttention takes them; of a pair in plain Python, `score` of the
    scaled one and whether it is `shown`."""

    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None
    score: Callable[[float, int, int, int, int], float] = lambda s, b, h, i, j: s
    shown: Callable[[int, int, int, int], bool] = lambda b, h, i, j: True

    def of_pairs(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Of all pairs, (batch, heads, queries, keys)."""
        changed, shown = torch.empty_like(scores), torch.empty(scores.shape, dtype=torch.bool)
        for b in range(BATCH):
            for h in range(HEADS):
                for i in range(LENGTH):
                    row = scores[b, h, i].tolist()
                    changed[b, h, i] = torch.tensor(
                        [self.score(s, b, h, i, j) for j, s in enumerate(row)], dtype=scores.dtype
                    )
                    shown[b, h, i] = torch.tensor([self.shown(b, h, i, j) for j in range(LENGTH)])
        return changed, shown


def inputs() -> list[Tensor]:
    """(batch, heads, seqlen, d_head), fp16."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(BATCH, HEADS, LENGTH, D_HEAD, generator=generator).half() for _ in range(3)]


def expected(example: Example, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) in float64: 0 and -inf of a row without a pair."""
    q, k, v = (x.cpu().double() for x in (q, k, v))
    scores, shown = example.of_pairs(q @ k.transpose(-1, -2) / math.sqrt(D_HEAD))
    scores = scores.masked_fill(~shown, -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.masked_fill(lse.isinf(), 0)[..., None])
    return weights @ v, lse


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


_SLOPES = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)])
_OF_HEADS = torch.tensor([0.5, -1.25])
_LENGTHS = (11, 1, 37, 23)  # of documents
_DOCUMENT = [n for n, length in enumerate(_LENGTHS) for _ in range(length)]
_FIRST_OF = [sum(_LENGTHS[:n]) for n in range(len(_LENGTHS))]
_DOCUMENTS, _FIRSTS = torch.tensor(_DOCUMENT), torch.tensor(_FIRST_OF)
_PREFIXES = (13, 30)  # of batches
_PADDED_TO = (60, 72)
_BIAS = torch.randn(BATCH, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1))
_BIAS_OF_KEYS = _BIAS[0, :, 0].contiguous()
_DISTANCES = _BIAS[1, :, 1, :11].contiguous()
_HOPS = torch.randint(0, 5, (BATCH, LENGTH, LENGTH), generator=torch.Generator().manual_seed(2))
_OF_HOPS = _BIAS[0, :, 1, :5].contiguous()
_IMAGES = ((0, 40), (20, 40), (40, 72))  # tokens that see the images
_OF_IMAGE = torch.tensor(_IMAGES).repeat_interleave(24, 0)
_STARTS, _ENDS = _OF_IMAGE[:, 0].contiguous(), _OF_IMAGE[:, 1].contiguous()
_PARENTS = [-1, *((node - 1) // 2 if node % 3 else node - 1 for node in range(1, 40))]
_SELECTED = (
    (0, 3),
    (1, 2),
    (2, 5),
    (0, 4),
    (4, 5),
    (1, 5),
)  # tiles of 12 keys, of tiles of queries


def _path(node: int) -> list[int]:
    return [node, *_path(_PARENTS[node])] if node >= 0 else []


_ANCESTORS = torch.zeros(40, 40, dtype=torch.bool)
for _node in range(40):
    _ANCESTORS[_node, _path(_node)] = True
_CHOSEN = torch.zeros(6, 6, dtype=torch.bool)
for _tile, _keys in enumerate(_SELECTED):
    _CHOSEN[_tile, list(_keys)] = True


def _near(center: int, size: int, reach: int) -> range:
    """The places that a window around `center` has, moved to lie inside."""
    first = min(max(center - reach, 0), size - 1 - 2 * reach)
    return range(first, first + 2 * reach + 1)


def _natten(width: int, height: int, x_of: Any, y_of: Any) -> Callable[..., Any]:
    """Windows of 3 x 5 of places that x_of and y_of tell."""

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        x, y = x_of(q).clamp(1, width - 2), y_of(q).clamp(2, height - 3)
        return ((x - x_of(k)).abs() <= 1) & ((y - y_of(k)).abs() <= 2)

    return mask


def _sees(width: int, height: int, at: Callable[[int], tuple[int, int]]) -> Callable[..., bool]:
    def shown(b: int, h: int, i: int, j: int) -> bool:
        (x, y), (own_x, own_y) = at(j), at(i)
        return x in _near(own_x, width, 1) and y in _near(own_y, height, 2)

    return shown


def _tiled(i: Any) -> tuple[Any, Any]:
    """(x, y) on a canvas of 8 x 9 in tiles of 2 x 3."""
    tile, inside = i // 6, i % 6
    return tile % 4 * 2 + inside % 2, tile // 4 * 3 + inside // 2


def _odd_bits(i: Any) -> Any:
    """Every second bit of seven, from bit 0 on."""
    return (i & 1) | (i >> 1 & 2) | (i >> 2 & 4) | (i >> 3 & 8)


def _morton(i: int) -> tuple[int, int]:
    bits = f"{i:08b}"
    return int(bits[1::2], 2), int(bits[::2], 2)


def _sandwich(i: int, j: int) -> float:
    return sum(math.cos((i - j) / 10000 ** (n / 4)) for n in range(4))


def _sliding_tiles(q: Any, k: Any) -> Any:
    """Tiles of 4 tokens, 4 x 4 of them, and 8 tokens of text: windows of 3 x 3 tiles."""
    row, column = (q // 16).clamp(1, 2), (q // 4 % 4).clamp(1, 2)
    near = ((k // 16 - row).abs() <= 1) & ((k // 4 % 4 - column).abs() <= 1)
    return ((q < 64) & (k < 64) & near) | (q >= 64) | (k >= 64)


def _sees_tile(b: int, h: int, i: int, j: int) -> bool:
    if i >= 64 or j >= 64:
        return True
    rows, columns = _near(i // 16, 4, 1), _near(i // 4 % 4, 4, 1)
    return j // 16 in rows and j // 4 % 4 in columns


def _diffusion(b: Any, h: Any, q: Any, k: Any) -> Any:
    noised_q, noised_k = q < 36, k < 36
    block_q, block_k = q % 36 // 6, k % 36 // 6
    own = (block_q == block_k) & (noised_q == noised_k)
    before = (block_q > block_k) & noised_q & ~noised_k
    clean = (block_q >= block_k) & ~noised_q & ~noised_k
    return own | before | clean


def _sees_diffused(b: int, h: int, i: int, j: int) -> bool:
    if j < 36:
        return i < 36 and i // 6 == j // 6
    own, block = i % 36 // 6, (j - 36) // 6
    return block < own if i < 36 else block <= own


def _within(document_of: Tensor, mask: Callable[..., Any]) -> Callable[..., Any]:
    """A mask of each document by itself."""

    def of_documents(b: Any, h: Any, q: Any, k: Any) -> Any:
        own, other = document_of[q], document_of[k]
        return (own == other) & mask(b, h, q - _FIRSTS[own], k - _FIRSTS[other])

    return of_documents


DOCUMENTED = {
    "noop": Example(lambda s, b, h, q, k: s),
    "causal": Example(mask_mod=_causal, shown=lambda b, h, i, j: j <= i),
    "causal_score": Example(
        lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")), shown=lambda b, h, i, j: j <= i
    ),
    "relative_positional": Example(
        lambda s, b, h, q, k: s + (q - k), score=lambda s, b, h, i, j: s + i - j
    ),
    "checkerboard": Example(
        lambda s, b, h, q, k: torch.where((k - q) % 2 == 0, s * 0.5, s),
        score=lambda s, b, h, i, j: s if (i + j) % 2 else s / 2,
    ),
    "alibi": Example(
        lambda s, b, h, q, k: s + _SLOPES[h] * (k - q),
        _causal,
        lambda s, b, h, i, j: s - 2.0 ** (-8 * (h + 1) / HEADS) * (i - j),
        lambda b, h, i, j: j <= i,
    ),
    "soft_capping": Example(
        lambda s, b, h, q, k: 2 * torch.tanh(s / 2),
        score=lambda s, b, h, i, j: 2 * math.tanh(s / 2),
    ),
    "sliding_window": Example(
        mask_mod=lambda b, h, q, k: (q >= k) & (q - k <= 10),
        shown=lambda b, h, i, j: i - 10 <= j <= i,
    ),
    "prefix_lm": Example(
        mask_mod=lambda b, h, q, k: (k < torch.tensor(_PREFIXES)[b]) | (q >= k),
        shown=lambda b, h, i, j: j < max(_PREFIXES[b], i + 1),
    ),
    "document": Example(
        mask_mod=lambda b, h, q, k: _DOCUMENTS[q] == _DOCUMENTS[k],
        shown=lambda b, h, i, j: _DOCUMENT[i] == _DOCUMENT[j],
    ),
    "document_causal": Example(
        mask_mod=_within(_DOCUMENTS, _causal),
        shown=lambda b, h, i, j: j <= i and _DOCUMENT[i] == _DOCUMENT[j],
    ),
    "padding": Example(
        mask_mod=lambda b, h, q, k: (
            (q < torch.tensor(_PADDED_TO)[b]) & (k < torch.tensor(_PADDED_TO)[b])
        ),
        shown=lambda b, h, i, j: max(i, j) < _PADDED_TO[b],
    ),
    "offset": Example(
        mask_mod=lambda b, h, q, k: q + torch.tensor(9) >= k, shown=lambda b, h, i, j: j <= i + 9
    ),
    "bias_of_head": Example(
        lambda s, b, h, q, k: s + _OF_HEADS[h], score=lambda s, b, h, i, j: s + (0.5, -1.25)[h]
    ),
    "bias_of_keys": Example(
        lambda s, b, h, q, k: s + _BIAS_OF_KEYS[h, k],
        score=lambda s, b, h, i, j: s + _BIAS[0, h, 0, j].item(),
    ),
    "bias_of_pairs": Example(
        lambda s, b, h, q, k: s + _BIAS[b, h, q, k],
        score=lambda s, b, h, i, j: s + _BIAS[b, h, i, j].item(),
    ),
    "bias_of_distances": Example(
        lambda s, b, h, q, k: s + _DISTANCES[h, (k - q).clamp(-5, 5) + 5],
        score=lambda s, b, h, i, j: s + _BIAS[1, h, 1, min(max(j - i + 5, 0), 10)].item(),
    ),
    "temperature": Example(
        lambda s, b, h, q, k: s / (1 + h), score=lambda s, b, h, i, j: s if h == 0 else s / 2
    ),
    "vision_cross_attention": Example(
        mask_mod=lambda b, h, q, k: (q >= _STARTS[k]) & (q < _ENDS[k]),
        shown=lambda b, h, i, j: i in range(*_IMAGES[j // 24]),
    ),
}

GYM = {
    "dilated_sliding_window": Example(
        mask_mod=lambda b, h, q, k: ((q - k).abs() <= 12) & ((q - k) % 4 == 0) & (q >= k),
        shown=lambda b, h, i, j: j in (i, i - 4, i - 8, i - 12),
    ),
    "batchify": Example(
        mask_mod=lambda b, h, q, k: (q // 9 == k // 9) & (q % 9 >= k % 9),
        shown=lambda b, h, i, j: j in range(i - i % 9, i + 1),
    ),
    "sink_window": Example(
        mask_mod=lambda b, h, q, k: ((q - k <= 7) | (k < 4)) & (q >= k),
        shown=lambda b, h, i, j: j in range(max(i - 7, 0), i + 1) or j <= min(3, i),
    ),
    "global_sliding_window": Example(
        mask_mod=lambda b, h, q, k: ((q - k).abs() <= 6) | (q < 5) | (k < 5),
        shown=lambda b, h, i, j: min(i, j) < 5 or abs(i - j) < 7,
    ),
    "shared_prefix": Example(
        mask_mod=lambda b, h, q, k: (q >= k) & ((k < 12) | (q // 12 == k // 12)),
        shown=lambda b, h, i, j: j <= i and j not in range(12, i - i % 12),
    ),
    "causal_blocks": Example(
        mask_mod=lambda b, h, q, k: q // 8 >= k // 8,
        shown=lambda b, h, i, j: j < 8 * (i // 8 + 1),
    ),
    "natten": Example(
        mask_mod=_natten(8, 9, lambda i: i % 8, lambda i: i // 8),
        shown=_sees(8, 9, lambda i: (i % 8, i // 8)),
    ),
    "tiled_natten": Example(
        mask_mod=_natten(8, 9, lambda i: _tiled(i)[0], lambda i: _tiled(i)[1]),
        shown=_sees(8, 9, _tiled),
    ),
    "morton_natten": Example(
        mask_mod=_natten(16, 16, _odd_bits, lambda i: _odd_bits(i >> 1)),
        shown=_sees(16, 16, _morton),
    ),
    "sliding_tiles": Example(mask_mod=lambda b, h, q, k: _sliding_tiles(q, k), shown=_sees_tile),
    # A prompt of 12 tokens, 5 frames of 12.
    "sparse_video_spatial": Example(
        mask_mod=lambda b, h, q, k: (q < 12) | (k < 24) | ((q - k).abs() < 20),
        shown=lambda b, h, i, j: i < 12 or j < 24 or i - 20 < j < i + 20,
    ),
    "sparse_video_temporal": Example(
        mask_mod=lambda b, h, q, k: (
            (q < 12) | (k < 12) | (((q - 12) % 12 - (k - 12) % 12).abs() < 3)
        ),
        shown=lambda b, h, i, j: min(i, j) < 12 or abs(i % 12 - j % 12) in (0, 1, 2),
    ),
    "video_sparse": Example(
        mask_mod=lambda b, h, q, k: _CHOSEN[q // 12, k // 12],
        shown=lambda b, h, i, j: j // 12 in _SELECTED[i // 12],
    ),
    "block_diffusion": Example(mask_mod=_diffusion, shown=_sees_diffused),
    # A prefix of 32 keys before a tree of 40.
    "jetspec_tree": Example(
        mask_mod=lambda b, h, q, k: (
            (k < 32) | ((q < 40) & _ANCESTORS[q.clamp(max=39), (k - 32).clamp(0, 39)])
        ),
        shown=lambda b, h, i, j: j < 32 or (i < 40 and j - 32 in _path(i)),
    ),
    # A prefix of 24 keys before blocks of 8.
    "jetspec_training": Example(
        mask_mod=lambda b, h, q, k: (
            (k < 24) | ((q // 8 == (k - 24) // 8) & ((k - 24) % 8 <= q % 8))
        ),
        shown=lambda b, h, i, j: j < 24 or j - 24 in range(i - i % 8, i + 1),
    ),
    "graphormer": Example(
        lambda s, b, h, q, k: s + _OF_HOPS[h, _HOPS[b, q, k]],
        score=lambda s, b, h, i, j: s + _BIAS[0, h, 1, _HOPS[b, i, j]].item(),
    ),
    "sandwich": Example(
        lambda s, b, h, q, k: (
            s
            + torch.cos(q - k)
            + torch.cos((q - k) / 10.0)
            + torch.cos((q - k) / 100.0)
            + torch.cos((q - k) / 1000.0)
        ),
        score=lambda s, b, h, i, j: s + _sandwich(i, j),
    ),
    "activation_relu": Example(
        lambda s, b, h, q, k: torch.log(torch.where(s > 0, s, 0.0) + 1.0),
        score=lambda s, b, h, i, j: math.log1p(max(s, 0.0)),
    ),
    "activation_gelu": Example(
        lambda s, b, h, q, k: torch.log(0.5 * s * (1 + torch.erf(s * 0.5**0.5)) + 1.0),
        score=lambda s, b, h, i, j: math.log1p(s * 0.5 * math.erfc(-s / math.sqrt(2))),
    ),
    "activation_sigmoid": Example(
        lambda s, b, h, q, k: torch.log(torch.sigmoid(s) + 1.0),
        score=lambda s, b, h, i, j: math.log1p(1 / (1 + math.exp(-s))),
    ),
}

EXAMPLES = DOCUMENTED | GYM


@cache
def traced() -> dict[str, Bound]:
    """Each as a variant with what it captures; of a mask, its function alone."""
    return {
        name: trace(example.score_mod, example.mask_mod, name) for name, example in EXAMPLES.items()
    }


@cache
def groups(size: int = 10) -> list[tuple[str, ...]]:
    """The names, so many together as one kernel is compiled for."""
    names = list(EXAMPLES)
    return [tuple(names[i : i + size]) for i in range(0, len(names), size)]


def of_group(names: tuple[str, ...]) -> tuple[Variant, dict[str, Any]]:
    """A variant of which the number `which` chooses the one with this place in `names`, and what
    all of them capture."""
    parts, values = [], {}
    for i, name in enumerate(names):
        bound = traced()[name]
        own = {param.name: f"of_{i}_{param.name}" for param in bound.variant.params}
        parts.append(_renamed(bound.variant, own))
        values |= {own[key]: value for key, value in bound.values.items()}
    return combined(parts), values


def _renamed(variant: Variant, names: Mapping[str, str]) -> Variant:
    """With other names of parameters."""
    params = tuple(Param(names[p.name], p.kind, p.rank) for p in variant.params)
    of = dict(zip(variant.params, params, strict=True))

    def rule(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "load":
            return load(of[node.data], *args)
        return operation(node.op, *args) if args else node

    return Variant(variant.name, params, fold(variant.score, rule), fold(variant.mask, rule))
