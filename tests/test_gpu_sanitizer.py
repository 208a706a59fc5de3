"""Kernels of every kind under compute-sanitizer: no stray access, no race in shared memory."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyflash import FlashForwardKernelConfig, built_configs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not shutil.which("compute-sanitizer"), reason="needs compute-sanitizer on the PATH"
    ),
]

ROOT = Path(__file__).resolve().parent.parent
FLAGS = (
    "async_copy",
    "eager_load_blocks",
    "swizzled",
    "mma_double_buffer_loads",
    "optimized_softmax",
)

# Ragged blocks on both sides, several of them, two CTAs and more.
RUN = """
import sys
import torch
from pyflash import FlashForwardKernelConfig, attention
from pyflash.reference import check
for short_form in sys.argv[1:]:
    config = FlashForwardKernelConfig.parse(short_form)
    dtype = getattr(torch, {"FP16": "float16", "BF16": "bfloat16"}[config.dtype.name])
    for seqlen_q, seqlen_k in ((131, 197), (1, 67), (64, 0)):
        q, k, v = (
            torch.randn(2, seqlen, 2, config.d_head, device="cuda", dtype=dtype)
            for seqlen in (seqlen_q, seqlen_k, seqlen_k)
        )
        out, lse = attention(q, k, v, config=config, return_lse=True)
        check(out, q, k, v, lse=lse)
print("checked", len(sys.argv) - 1, "configs")
"""


def one_of_each_kind() -> list[FlashForwardKernelConfig]:
    """For each flag and state a built config, as few as that takes."""
    chosen: list[FlashForwardKernelConfig] = []
    for flag in FLAGS:
        for state in (False, True):
            of_kind = [c for c in built_configs() if getattr(c, flag) == state]
            if of_kind and not set(chosen) & set(of_kind):
                chosen.append(of_kind[0])
    return chosen


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool):
    configs = [str(config) for config in one_of_each_kind()]
    assert len(configs) >= 2
    result = subprocess.run(
        [
            *("compute-sanitizer", f"--tool={tool}", "--error-exitcode=9"),
            *(sys.executable, "-c", RUN, *configs),
        ],
        cwd=ROOT,
        # Without torch's cache every tensor is an allocation of its own, with its own bounds.
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert f"checked {len(configs)} configs" in result.stdout
