"""The SM90 configs that emulator tests run, and what their counts must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pyflash.codegen.emulated import build_emulated
from pyflash.config import KernelConfig, parse
from pyflash.emulator import Report
from pyflash.op.reference import attended_with

# Both states of every flag, one to four consumers, every kind of swizzle, small blocks so that
# there are many.
CONFIGS = [
    parse(short_form).canonical()
    for short_form in (
        "(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
        "(BF16, 128, 128, 48, 2): sm90+stages_3+persistent+pack_gqa",
        "(FP16, 96, 192, 32, 3): sm90+stages_2+overlap+pingpong+rescale_threshold",
        "(BF16, 64, 256, 32, 4): sm90+stages_3+overlap+pingpong+persistent+rescale_threshold",
        "(BF16, 64, 64, 32, 1): sm90+stages_1+overlap+persistent+rescale_threshold+pack_gqa",
    )
]
BEST = CONFIGS[0]
# CTAs that take several tiles each, and both kinds of rounds.
RESIDENT_CTAS = 2


@pytest.fixture(scope="session")
def libraries() -> dict[KernelConfig, Path]:
    return build_emulated(CONFIGS)


def n_wgmma(config: KernelConfig, report: Report, inputs: tuple[Any, ...]) -> tuple[int, int]:
    """SS and RS, of a kernel whose warpgroups attend every block of which some row of theirs
    attends some key, and no other."""
    problem = report.problem
    group = problem["heads"] // problem["heads_kv"] if config.pack_gqa else 1
    lengths = [(problem["seqlen_q"], problem["seqlen_k"])] * problem["batch"]
    if len(inputs) > 3:
        lengths = zip(*(cu_seqlens.diff().tolist() for cu_seqlens in inputs[3:5]), strict=True)
    n_blocks = 0
    for seqlen_q, seqlen_k in lengths:
        masks = ("window_left", "window_right", "attention_chunk")
        options = {name: int(problem[name]) for name in masks}
        scores = attended_with(options, torch.arange(seqlen_q), seqlen_q, seqlen_k)
        n_blocks += sum(
            block.any().item()
            for rows in scores.split(64 // group)
            for block in rows.split(config.B_c, dim=1)
        )
    n_tiles = n_blocks * problem["heads"] // group
    return n_tiles * config.d_head // 16, n_tiles * config.B_c // 16
