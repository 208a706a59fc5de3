"""The named sets of the SM90 forward family, its preferred configs, and what each is built with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from pyflash.config.base import DType
from pyflash.config.features import (
    DROPOUT,
    FORWARD,
    LISTED,
    SHARED,
    Features,
    with_fixed_splits,
)
from pyflash.config.sm90_forward.config import FlashForwardSm90Config
from pyflash.config.variant_needs import VariantNeeds


def _of_each_dtype(words: str, *tiles: str) -> list[FlashForwardSm90Config]:
    return [
        FlashForwardSm90Config.parse(f"{tile}+{words}").replace(dtype=dtype)
        for tile in tiles
        for dtype in DType
    ]


_LONG = "overlap+pingpong+persistent+rescale_threshold"
# Shorter blocks: fewer of a tile's scores lie outside of a window.
_WINDOWED = _of_each_dtype(
    "overlap+persistent+rescale_threshold",
    "(FP16, 128, 192, 64, 3): sm90+stages_3",
)

_OF_FEW_QUERIES = "overlap+persistent+rescale_threshold+pack_gqa"
_FOR_FEW_QUERIES = _of_each_dtype(
    _OF_FEW_QUERIES,
    "(FP16, 128, 64, 64, 1): sm90+stages_2",
    "(FP16, 64, 64, 128, 1): sm90+stages_2",
)

# At each d_head the best on one H200, best first. At 128, the larger tile is for long sequences; at
# 64, the smallest one for grids that the larger ones leave small, that of 192 rows for long
# sequences, and the one without `pingpong`, where the first blocks need not take turns, for causal
# masks. The smallest of all are for few queries.
DEFAULTS = (
    _of_each_dtype(
        _LONG,
        "(FP16, 128, 128, 128, 2): sm90+stages_2",
        "(FP16, 128, 192, 80, 3): sm90+stages_3",
        "(FP16, 64, 256, 64, 4): sm90+stages_3",
        "(FP16, 64, 128, 128, 2): sm90+stages_2",
        "(FP16, 64, 192, 128, 3): sm90+stages_2",
    )
    + _of_each_dtype(
        "overlap+persistent+rescale_threshold",
        "(FP16, 64, 256, 64, 4): sm90+stages_4",
    )
    + _WINDOWED
    + _FOR_FEW_QUERIES
)

# Many short sequences: three CTAs on an SM hide what a tile of few blocks waits for. Tables choose
# them; they have no rank.
SHORT = _of_each_dtype(
    "persistent+rescale_threshold+three_ctas",
    "(FP16, 64, 64, 64, 1): sm90+stages_2+overlap",
    "(FP16, 64, 64, 80, 1): sm90+stages_2+overlap",
    "(FP16, 64, 64, 96, 1): sm90+stages_1",
)

# The head dimensions that are built on request.
HEAD_DIMS = _of_each_dtype(
    _LONG,
    "(FP16, 96, 192, 96, 3): sm90+stages_2",
    "(FP16, 96, 128, 128, 2): sm90+stages_2",
    "(FP16, 192, 128, 96, 2): sm90+stages_2",
    "(FP16, 256, 128, 64, 2): sm90+stages_2",
) + _of_each_dtype(_OF_FEW_QUERIES, "(FP16, 256, 64, 64, 1): sm90+stages_2")

# With a variant. Where it keeps nothing beside the scores, more consumers are faster. What scores
# by position, bits and tensors of pairs keep leaves no room for four, and at d_head 128 two are
# faster with it: docs/experiments/2026-11-variant-instructions.md.
_FOR_FEW_NEEDS = _of_each_dtype(
    "overlap+persistent+rescale_threshold",
    "(FP16, 64, 256, 64, 4): sm90+stages_4",
    "(FP16, 128, 192, 64, 3): sm90+stages_3",
)
_FOR_ANY_NEEDS = (
    *_of_each_dtype(
        "overlap+persistent+rescale_threshold", "(FP16, 64, 192, 96, 3): sm90+stages_3"
    ),
    *_of_each_dtype(
        _LONG,
        "(FP16, 96, 128, 128, 2): sm90+stages_2",
        "(FP16, 128, 128, 128, 2): sm90+stages_2",
        "(FP16, 192, 128, 96, 2): sm90+stages_2",
        "(FP16, 256, 128, 64, 2): sm90+stages_2",
    ),
)
# Masks as bits, and few keys.
_FOR_SHORT_MASKS = tuple(config for config in SHORT if config.B_c == 64)


def for_variants(
    needs: VariantNeeds, few_keys: bool, few_queries: bool
) -> Sequence[FlashForwardSm90Config]:
    """What runs a variant of such needs where no config is named, at each d_head the best first."""
    if few_queries:
        wide = tuple(config for config in HEAD_DIMS if config.pack_gqa)
        return (*_FOR_FEW_QUERIES, *wide, *_FOR_ANY_NEEDS)
    if needs == VariantNeeds(bits=True) and few_keys:
        return (*_FOR_SHORT_MASKS, *_FOR_ANY_NEEDS)
    return _FOR_ANY_NEEDS if needs.words else (*_FOR_FEW_NEEDS, *_FOR_ANY_NEEDS)


# The best of two consumers at each d_head.
_OF_TWO = {
    (c.dtype, c.d_head): c
    for c in reversed((*DEFAULTS, *HEAD_DIMS))
    if c.n_consumers == 2 and not c.pack_gqa
}

# For batch_invariant: at each d_head one for many rows, and at two of them one for few, too. Rows
# decide for themselves and blocks have as many keys, so both give a row the same bits.
INVARIANT = [
    config.replace(rows_decide=True)
    for config in (
        *(config for (_, d_head), config in _OF_TWO.items() if d_head != 64),
        *_of_each_dtype(
            "overlap+persistent+rescale_threshold", "(FP16, 64, 256, 64, 4): sm90+stages_4"
        ),
        *_of_each_dtype(
            "overlap+persistent+rescale_threshold+pack_gqa",
            "(FP16, 64, 64, 64, 1): sm90+stages_2",
            "(FP16, 128, 64, 128, 1): sm90+stages_2",
        ),
    )
]

# The set `dropout` has the config of two consumers of each d_head. Where the default set has it,
# too, both build it with all of its features: a library that is loaded replaces a config's kernels.
# Else the set has one that is not persistent, which is built with dropout alone.
_ALSO_DROPPING = [config for config in _OF_TWO.values() if config in DEFAULTS]
DROPPING = [c.replace(persistent=False) for c in _OF_TWO.values() if c not in DEFAULTS]

SETTLED = {"stages": (1, 2, 3)}

# At long sequences without a mask: docs/experiments/2026-11-sm90-forward.md, and h200-tune.jsonl
# in docs/data.
SLOWDOWNS = {
    "overlap": {False: 1.04},
    "pingpong": {False: 1.04},
    "persistent": {False: 1.02},
    "rescale_threshold": {False: 1.02},
    "stages": {1: 1.3},
}

# What selection prefers, best first; before any config of the SM80 family.
RANKED = (*DEFAULTS, *HEAD_DIMS)
FIRST_RANK = -100

SETS: dict[str, Callable[[], Iterable[FlashForwardSm90Config]]] = {
    "all": lambda: DEFAULTS + SHORT,
    "sm90": lambda: DEFAULTS + SHORT,
    "head_dims": lambda: HEAD_DIMS,
    "invariant": lambda: INVARIANT,
    "dropout": lambda: (*_ALSO_DROPPING, *DROPPING),
}


# Built by default. Three or four consumers have no registers for all features at once: narrower
# heads with left windows, sinks or softcap run in other configs. Three of wide heads have none for
# a softcap, but with the blocks of those for windows.
BUILT = tuple(
    map(
        Features.parse,
        (
            "plain",
            "right_window",
            "right_window+left_window",
            "predicated_head_dim",
            "right_window+predicated_head_dim",
            "right_window+left_window+sinks",
        ),
    )
)
_SHORT_BUILT = tuple(map(Features.parse, ("plain", "right_window")))
# A softcap under any mask: without one, or causal, it is as fast as a combination of its own.
_CAPPED = Features.parse("right_window+left_window+softcap")
_ALL = Features.parse("right_window+left_window+predicated_head_dim+softcap+sinks")
_BIASED = Features.parse("right_window+left_window+predicated_head_dim+sinks+alibi_slopes")
# Pages: a config for many queries at each d_head, and one for few. Of the others, that for long
# sequences has causal prefill alone.
_PREFILL = Features.parse("right_window+paged_kv")
_PAGED = tuple(f for f in FORWARD.built if f.paged_kv and not f.fp8_kv)


def built_features(config: FlashForwardSm90Config) -> Sequence[Features]:
    if config in DROPPING:
        return DROPOUT
    if config in SHORT:
        return _SHORT_BUILT
    if config in INVARIANT:
        return with_fixed_splits((*BUILT, _ALL, _BIASED, *_PAGED))
    unlisted = _unlisted(config)
    listed = [features for features in LISTED if _without_list(features) in unlisted]
    # CTAs share keys in tiles of few queries.
    shared = SHARED if config.n_consumers == 1 and config.persistent else ()
    dropping = DROPOUT if config in _ALSO_DROPPING else ()
    return Features.in_dispatch_order((*unlisted, *listed, *shared, *dropping))


def _without_list(features: Features) -> Features:
    return dataclasses.replace(features, listed_tiles=False)


def _unlisted(config: FlashForwardSm90Config) -> Sequence[Features]:
    if config in _WINDOWED:
        return tuple(features for features in (*BUILT, _CAPPED) if features.left_window)
    if config.n_consumers == 3 and config.d_head > 64:
        return (*BUILT, _PREFILL) if config in DEFAULTS else BUILT
    if config.n_consumers > 2:
        return (*BUILT, _CAPPED)
    return (*BUILT, _CAPPED, _ALL, _BIASED, *_PAGED)
