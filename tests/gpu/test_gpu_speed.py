"""Ratios of one run that show a lost optimisation."""

import math

import pytest
import torch

import pyflash
from pyflash import DType, Problem
from pyflash.bench.measure import rotated_inputs
from pyflash.bench.timing import seconds_per_call

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
N_TURNS = 200
# Before each call, so that the kernel is in the queue when the clock starts.
SLEEP_CYCLES = 100_000


@pytest.mark.times
@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.name)
def test_causal_takes_about_half_of_full(dtype, capsys):
    """Pitfall 24: toolchain and power decide speed. A ratio of one run of one config, in turns: of
    the least times, because what else runs on the GPU can but add to one."""
    shape = {"batch": 2, "heads_q": 16, "heads_kv": 16, "seqlen_q": 8192, "seqlen_k": 8192}
    problem = Problem(**shape, d_head=128, dtype=dtype)
    config = str(pyflash.select(problem).config)
    buffers = rotated_inputs(problem, CUDA)
    least = {True: math.inf, False: math.inf}
    for i in range(N_TURNS):
        inputs = buffers[i % len(buffers)]
        for causal in least:

            def call(_, inputs=inputs, causal=causal):
                torch.ops.pyflash.fwd(*inputs, causal=causal, config=config)

            torch.cuda._sleep(SLEEP_CYCLES)
            least[causal] = min(least[causal], seconds_per_call(call, CUDA, 1))
    causal, full = least[True], least[False]
    with capsys.disabled():
        print(f"\n{config}: causal {causal * 1e3:.3f} ms, {causal / full:.3f} of full")
    assert causal <= 0.56 * full
