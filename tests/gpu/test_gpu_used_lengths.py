"""Sequences of different lengths on a GPU: padded with lengths on the device, and packed."""

import pytest
import torch
from support.uneven import check_used, make_uneven, run_uneven

from pyflash import attention

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seeds", [range(i, i + 250) for i in range(0, 5000, 250)], ids=str)
def test_random_lengths(seeds):
    for seed in seeds:
        run_uneven(seed, "cuda", longest=700)


def test_one_cuda_graph_serves_any_lengths():
    case = make_uneven(3, "cuda")
    lengths = {"seqlens_q": case.seqlens_q, "seqlens_k": case.seqlens_k}
    inputs = [x.nan_to_num(0.5) for x in (case.q, case.k, case.v)]

    def attend():
        return attention(*inputs, return_lse=True, **lengths, **case.options)

    attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attend()
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(200):
        for x, most in ((case.seqlens_q, case.q.shape[1]), (case.seqlens_k, case.k.shape[1])):
            x.random_(0, most + 1, generator=generator)
        graph.replay()
        for replayed, eager in zip(captured, attend(), strict=True):
            assert torch.equal(replayed, eager)


def test_lengths_beyond_the_tensors_leave_them_nowhere():
    case = make_uneven(3, "cuda")
    lengths = torch.full_like(case.seqlens_k, 1 << 30)
    inputs = [x.nan_to_num(0.5) for x in (case.q, case.k, case.v)]
    told = attention(*inputs, seqlens_k=lengths, seqlens_q=lengths, **case.options)
    everything = torch.full_like(lengths, inputs[1].shape[1])
    expected = attention(*inputs, seqlens_k=everything, **case.options)
    assert torch.equal(told, expected)


def test_nothing_waits_for_the_gpu():
    case = make_uneven(3, "cuda")
    lengths = {"seqlens_q": case.seqlens_q, "seqlens_k": case.seqlens_k}
    attention(case.q, case.k, case.v, **lengths, **case.options)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out, lse = attention(case.q, case.k, case.v, return_lse=True, **lengths, **case.options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check_used(case, out, lse)
