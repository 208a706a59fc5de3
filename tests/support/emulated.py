"""The configs that emulator tests run, and how they run one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pyflash import FlashForwardKernelConfig, named_set
from pyflash.codegen.emulated import build_emulated
from pyflash.emulator import Report
from pyflash.emulator.run import run_library
from pyflash.op.reference import attended

# The ladder but for a step that another config takes too, and every kind of copy, schedule, layout,
# load count, tile and head dimension beside it.
CONFIGS = [
    config.canonical()
    for config in (
        *(config for step, config in enumerate(named_set("prog"), start=1) if step != 2),
        *map(
            FlashForwardKernelConfig.parse,
            (
                "(BF16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
                "+rescale_threshold",
                "(BF16, 128, 64, 32, 4): swizzled+load_2_2_2_tiles+buffer",
                "(FP16, 128, 128, 64, 8): load_0_4_2_tiles+opt_softmax",
                "(BF16, 96, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
                "(FP16, 64, 128, 32, 8): async+eager+load_0_2_2_tiles+buffer",
                "(FP16, 64, 128, 128, 4): swizzled+load_2_2_4_tiles+opt_softmax",
                "(BF16, 64, 64, 128, 4): async+load_4_4_0_tiles+opt_softmax",
                "(FP16, 64, 64, 32, 4): async+swizzled+load_0_0_0_tiles",
                "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_2"
                "+rescale_threshold",
                "(FP16, 128, 64, 32, 4): async+eager+load_2_2_2_tiles+buffer+stages_3",
            ),
        ),
    )
]
BEST = CONFIGS[5]
assert "load_0_2_2_tiles+opt_softmax" in str(BEST)

Libraries = dict[FlashForwardKernelConfig, Path]


@pytest.fixture(scope="session")
def libraries() -> Libraries:
    return build_emulated(CONFIGS)


def emulate(
    libraries: Libraries, config: FlashForwardKernelConfig, inputs: tuple[Any, ...], **options: Any
) -> tuple[Tensor, Tensor, Report]:
    return run_library(libraries[config], inputs, config, **options)


def n_mma(config: FlashForwardKernelConfig, report: Report, inputs: tuple[Any, ...]) -> int:
    """How many a kernel issues that looks at the blocks in which some query attends some key."""
    problem = report.problem
    lengths = [(problem["seqlen_q"], problem["seqlen_k"])] * problem["batch"]
    if len(inputs) > 3:
        lengths = zip(*(cu_seqlens.diff().tolist() for cu_seqlens in inputs[3:5]), strict=True)
    n_blocks = 0
    for seqlen_q, seqlen_k in lengths:
        windows = problem["window_left"], problem["window_right"]
        scores = attended(torch.arange(seqlen_q), seqlen_q, seqlen_k, *windows)
        n_blocks += sum(
            block.any().item()
            for rows in scores.split(config.B_r)
            for block in rows.split(config.B_c, dim=1)
        )
    products = 2 * config.B_r * config.B_c * config.d_head
    return problem["heads"] * n_blocks * products // (16 * 8 * 16)
