"""Ratios of one run that tell of a lost optimisation: what a mask skips, what a call costs."""

import time
from statistics import median

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import pyflash
from pyflash import DType, Problem
from pyflash.bench.forward import rotated_inputs
from pyflash.bench.timing import time_in_turns
from pyflash.op.selection import TORCH_DTYPES

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


def microseconds_per_call(call):
    """On the host, without waiting for the GPU: the median, in groups that its queue can hold."""
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        for _ in range(100):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
    return median(times[len(times) // 10 :]) / 1e3


def test_a_call_costs_little_on_the_host(capsys):
    q, k, v = torch.randn(3, 1, 64, 2, 64, device="cuda", dtype=TORCH_DTYPES[DType.FP16])
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    lengths = torch.tensor([0, 64], dtype=torch.int32, device="cuda")
    packed = (*(x[0] for x in (q, k, v)), lengths, lengths, 64, 64)
    calls = {
        "torch.ops.pyflash.fwd": lambda: torch.ops.pyflash.fwd(q, k, v),
        "causal": lambda: torch.ops.pyflash.fwd(q, k, v, causal=True),
        "torch.ops.pyflash.fwd_varlen": lambda: torch.ops.pyflash.fwd_varlen(*packed),
        "scaled_dot_product_attention": lambda: scaled_dot_product_attention(*heads_first),
    }
    microseconds = {name: microseconds_per_call(call) for name, call in calls.items()}
    with capsys.disabled():
        print("\nus per call:", ", ".join(f"{name} {us:.1f}" for name, us in microseconds.items()))
    assert microseconds["torch.ops.pyflash.fwd"] < 15
