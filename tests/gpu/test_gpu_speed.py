"""Ratios of one run that show a lost optimisation."""

import pytest
import torch

import pyflash
from pyflash import DType, Problem
from pyflash.bench.measure import rotated_inputs
from pyflash.bench.timing import time_in_turns

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.name)
def test_causal_takes_about_half_of_full(dtype, capsys):
    """Pitfall 24: toolchain and power decide speed. A ratio of one run of one config, in turns."""
    shape = {"batch": 1, "heads_q": 16, "heads_kv": 16, "seqlen_q": 8192, "seqlen_k": 8192}
    problem = Problem(**shape, d_head=128, dtype=dtype)
    config = str(pyflash.select(problem).config)
    buffers = rotated_inputs(problem, CUDA)

    def calls(causal):
        def run(n):
            for i in range(n):
                torch.ops.pyflash.fwd(*buffers[i % len(buffers)], causal=causal, config=config)

        return run

    timings = time_in_turns({"causal": calls(True), "full": calls(False)}, CUDA, n_samples=20)
    causal, full = timings["causal"].seconds, timings["full"].seconds
    with capsys.disabled():
        print(f"\n{config}: causal {causal * 1e3:.3f} ms, {causal / full:.3f} of full")
    assert causal <= 0.56 * full
