"""The features of op `FORWARD` beyond plain attention, and the combinations that its kernels are
built for.

The struct of the same fields in C++ is `ForwardFeatures` in cute_kernels/features.h.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from pyflash.config.op import KernelFeatures, Op


@dataclass(frozen=True, order=True, slots=True)
class Features(KernelFeatures):
    """What a kernel can do, or what a problem needs."""

    struct: ClassVar[str] = "ForwardFeatures"
    exact: ClassVar[frozenset[str]] = frozenset(
        {"paged_kv", "fp8_kv", "equal_shares", "dropout", "fixed_splits"}
    )

    right_window: bool = False  # keys end at a diagonal: causal, window_right
    left_window: bool = False  # keys start at a diagonal: window_left
    predicated_head_dim: bool = False  # a head_dim below the config's d_head
    softcap: bool = False
    sinks: bool = False
    alibi_slopes: bool = False
    paged_kv: bool = False  # k and v in pages, and lengths on the device
    listed_tiles: bool = False  # of packed sequences of different lengths
    fp8_kv: bool = False  # k and v in e4m3, with scales
    equal_shares: bool = False  # of the keys of all sequences, one for each CTA
    dropout: bool = False  # of the probabilities
    fixed_splits: bool = False  # at multiples of a number of keys
    gathered_kv: bool = False  # pages of k and v of any size, row by row


NAMES = Features.names()


def gathering(features: Features) -> Features:
    """Those of a kernel that takes pages of any size."""
    return dataclasses.replace(features, gathered_kv=features.paged_kv and not features.fp8_kv)


# Those that take a list of the tiles of packed sequences. Where what a problem needs is not built
# with it, the problem runs without a list.
LISTED = tuple(
    map(
        Features.parse,
        (
            "listed_tiles",
            "right_window+listed_tiles",
            "right_window+left_window+listed_tiles",
            "right_window+left_window+predicated_head_dim+softcap+sinks+listed_tiles",
            "right_window+paged_kv+listed_tiles",
            "right_window+left_window+predicated_head_dim+softcap+sinks+paged_kv+listed_tiles",
            "right_window+paged_kv+listed_tiles+gathered_kv",
            "right_window+left_window+predicated_head_dim+softcap+sinks+paged_kv+listed_tiles"
            "+gathered_kv",
        ),
    )
)

# Those that share the keys of all sequences among CTAs, where a problem asks for it.
SHARED = tuple(
    map(
        Features.parse,
        (
            "equal_shares",
            "right_window+equal_shares",
            "paged_kv+equal_shares",
            "right_window+paged_kv+equal_shares",
            "right_window+left_window+predicated_head_dim+softcap+sinks+equal_shares",
            "right_window+left_window+predicated_head_dim+softcap+sinks+paged_kv+equal_shares",
            "paged_kv+equal_shares+gathered_kv",
            "right_window+paged_kv+equal_shares+gathered_kv",
            "right_window+left_window+predicated_head_dim+softcap+sinks+paged_kv+equal_shares"
            "+gathered_kv",
        ),
    )
)

# The combinations that are built by default, smallest first. A problem runs in the first that
# covers what it needs.
_UNLISTED = tuple(
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
            "right_window+left_window+predicated_head_dim+sinks+alibi_slopes",
            "paged_kv",
            "right_window+paged_kv",
            "right_window+left_window+sinks+paged_kv",
            "right_window+left_window+predicated_head_dim+softcap+sinks+paged_kv",
            "right_window+left_window+predicated_head_dim+sinks+alibi_slopes+paged_kv",
        ),
    )
)


# Those that read caches of e4m3, which are in pages.
FP8 = tuple(
    map(
        Features.parse,
        (
            "paged_kv+fp8_kv",
            "right_window+left_window+predicated_head_dim+softcap+sinks+alibi_slopes+paged_kv"
            "+fp8_kv",
        ),
    )
)

# Those that configs of the set `dropout` are built with.
DROPOUT = tuple(
    map(
        Features.parse,
        (
            "dropout",
            "right_window+dropout",
            "right_window+left_window+predicated_head_dim+softcap+sinks+alibi_slopes+dropout",
        ),
    )
)


def with_fixed_splits(built: Iterable[Features]) -> tuple[Features, ...]:
    """Those of batch_invariant, which takes no softcap: under one the rows of a warp vote."""
    fixed = (dataclasses.replace(f, softcap=False, fixed_splits=True) for f in built)
    return tuple(dict.fromkeys(fixed))


# Those that take pages of any size, fewer than of pages that are boxes.
GATHERED = tuple(
    map(
        Features.parse,
        (
            "paged_kv+gathered_kv",
            "right_window+paged_kv+gathered_kv",
            "right_window+left_window+predicated_head_dim+softcap+sinks+paged_kv+gathered_kv",
            "right_window+left_window+predicated_head_dim+sinks+alibi_slopes+paged_kv+gathered_kv",
        ),
    )
)

FIXED = with_fixed_splits((*_UNLISTED, *GATHERED))

BUILT = Features.in_dispatch_order((*_UNLISTED, *GATHERED, *LISTED, *FP8))

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
            "right_window+left_window+predicated_head_dim+softcap+sinks+alibi_slopes+listed_tiles",
        ),
    )
)

# The same of pages, of equal shares, and of both, for libraries of their own.
_EVERY = "right_window+left_window+predicated_head_dim+softcap+sinks+alibi_slopes"
_ON_PAGES = (Features.parse(f"{_EVERY}+paged_kv"), Features.parse(f"{_EVERY}+paged_kv+gathered_kv"))
EMULATED_PAGED = tuple(dataclasses.replace(f, listed_tiles=True) for f in _ON_PAGES)
EMULATED_SHARED = (Features.parse(f"{_EVERY}+equal_shares"),)
EMULATED_PAGED_SHARED = tuple(dataclasses.replace(f, equal_shares=True) for f in _ON_PAGES)
EMULATED_FIXED = with_fixed_splits([Features.parse(_EVERY)])
EMULATED_PAGED_FIXED = with_fixed_splits(_ON_PAGES)

# And of caches of e4m3.
EMULATED_FP8 = FP8

# And with dropout.
EMULATED_DROPOUT = (Features.parse(f"{_EVERY}+listed_tiles+dropout"),)

FORWARD = Op(
    name="forward",
    struct="Forward",
    header="cute_kernels/forward.h",
    features=Features,
    built=BUILT,
    emulated=EMULATED,
)


def first_covering(
    needed: Features | str, built: Iterable[Features | str] = BUILT
) -> Features | None:
    """The combination of `built` that a problem runs in: the first that covers `needed`."""
    needed = Features.of(needed)
    return next((f for f in map(Features.of, built) if f.covers(needed)), None)
