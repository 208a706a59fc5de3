"""Problems of every kind for the emulator: masks, sinks, groups of heads, narrow heads, packed
sequences, split keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from support.problems import (
    NO_MASK,
    Mask,
    Packed,
    Shape,
    inputs_and_expected,
    make_inputs,
    make_packed,
    make_sinks,
    packed_and_expected,
)

from pyflash.config import KernelConfig
from pyflash.op.reference import Expected, expect, expect_varlen
from pyflash.op.selection import TORCH_DTYPES

CAUSAL = Mask("causal", causal=True)
WINDOW_AND_CAP = Mask("window_and_cap", window_left=50, window_right=3, softcap=5.0)


BLOCKS_LEFT_OUT = Mask("left_window", window_left=40)


@dataclass(frozen=True)
class Case:
    name: str
    shape: Shape | Packed
    mask: Mask = NO_MASK
    num_splits: int = 1
    # Columns of d_head; None: as many as the config has.
    d_head: int | None = None
    # The dtype of the sinks, "own" being that of q; None: no sinks.
    sinks: str | None = None

    def __str__(self) -> str:
        return self.name

    def options(self, config: KernelConfig) -> dict[str, Any]:
        options = {**self.mask.options, "num_splits": self.num_splits}
        if self.sinks:
            dtype = TORCH_DTYPES[config.dtype] if self.sinks == "own" else torch.float32
            options["sinks"] = make_sinks(self.shape.heads, dtype)
        return options

    def problem(self, config: KernelConfig) -> tuple[tuple[Any, ...], Expected]:
        """The op's positional arguments, and what has to come out."""
        packed = isinstance(self.shape, Packed)
        dtype, d_head = TORCH_DTYPES[config.dtype], min(self.d_head or 512, config.d_head)
        if not self.sinks:
            make = packed_and_expected if packed else inputs_and_expected
            return make(self.shape, dtype, d_head, mask=self.mask)
        options = self.options(config)
        del options["num_splits"]
        if packed:
            inputs = make_packed(self.shape, dtype, d_head)
            return inputs, expect_varlen(*inputs[:5], **options)
        inputs = make_inputs(self.shape, dtype, d_head)
        return inputs, expect(*inputs, **options)


# Lengths of several blocks, the last ragged, at every block size.
CASES = [
    Case("causal", Shape("", 1, 199, 199, 1), CAUSAL),
    Case("causal_fewer_queries", Shape("", 2, 71, 170, 1, "nan_around"), CAUSAL),
    # 130 rows, two blocks of them or one, have nothing to attend.
    Case("causal_more_queries", Shape("", 1, 201, 71, 2, "nan_around", 1), CAUSAL),
    Case("window", Shape("", 1, 199, 263, 1), Mask("", window_left=33, window_right=20)),
    Case("left_window", Shape("", 1, 190, 131, 1), Mask("", window_left=70)),
    Case("right_window", Shape("", 1, 67, 199, 1), Mask("", window_right=40)),
    Case("diagonal", Shape("", 1, 140, 133, 1), Mask("", window_left=0, window_right=0)),
    Case("cap", Shape("", 1, 67, 131, 3, "nan_around", 1), Mask("", softcap=0.7)),
    Case("window_and_cap", Shape("", 1, 131, 199, 2, "contiguous", 1), WINDOW_AND_CAP),
    Case("one_query", Shape("", 2, 1, 199, 6, heads_kv=2)),
    Case("one_query_and_window", Shape("", 1, 1, 199, 4, "nan_around", 2), WINDOW_AND_CAP),
    Case("narrow_heads", Shape("", 1, 67, 131, 4, "sliced", 2), d_head=72),
    Case("very_narrow_heads", Shape("", 1, 131, 67, 2, "sliced"), CAUSAL, d_head=40),
    Case("packed", Packed("", (33, 0, 70, 1), (131, 5, 0, 67), 2, 1)),
    Case("packed_causal", Packed("", (0, 131, 17, 65), (7, 70, 0, 129), 2, 2), CAUSAL),
    Case("packed_narrow_heads", Packed("", (67, 9), (70, 33), 2, 2), WINDOW_AND_CAP, d_head=40),
    Case("splits", Shape("", 1, 67, 263, 2), num_splits=2),
    Case("more_splits_than_blocks", Shape("", 1, 67, 131, 2, "nan_around", 1), CAUSAL, 6),
    Case("splits_of_rows_without_keys", Shape("", 1, 199, 70, 1), CAUSAL, 3),
    Case("packed_splits", Packed("", (67, 0, 17), (131, 9, 0), 2, 1), WINDOW_AND_CAP, 3, 40),
    Case("splits_of_no_query", Shape("", 1, 0, 67, 2), num_splits=2),
    Case("splits_of_one_query", Shape("", 1, 1, 263, 4, heads_kv=2), num_splits=3, d_head=40),
    Case("sinks", Shape("", 2, 67, 131, 3, "nan_around", 1), sinks="float32"),
    Case("sinks_and_window", Shape("", 1, 131, 199, 2), BLOCKS_LEFT_OUT, sinks="own"),
    Case("sinks_of_rows_without_keys", Shape("", 1, 199, 70, 2), CAUSAL, sinks="float32"),
    Case("sinks_without_keys", Shape("", 1, 33, 0, 2), sinks="own"),
    Case("sinks_of_one_query", Shape("", 2, 1, 199, 6, heads_kv=2), sinks="own"),
    Case("sinks_and_all_else", Shape("", 1, 67, 199, 2), WINDOW_AND_CAP, d_head=40, sinks="own"),
    Case("packed_sinks", Packed("", (33, 0, 70, 1), (131, 5, 0, 67), 2, 1), sinks="float32"),
    Case("splits_and_sinks", Shape("", 1, 67, 263, 2), CAUSAL, 3, sinks="own"),
    Case("few_blocks", Shape("", 1, 67, 40, 2), d_head=40),
    Case("one_block_in_the_window", Shape("", 1, 1, 263, 2), Mask("", window_left=9)),
]
