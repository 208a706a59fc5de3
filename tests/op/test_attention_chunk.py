"""Chunked local attention, on the CPU: which keys a query attends, results and gradients."""

import itertools

import pytest
import torch
from support.problems import Mask, Packed, Shape, inputs_and_expected, make_inputs, make_packed

from pyflash import Problem, attention, attention_varlen
from pyflash.op.backward.cuda import _chunks
from pyflash.op.reference import attention_ref, attention_varlen_ref, expect_varlen
from pyflash.op.selection import features_needed

LENGTHS = [(1, 1), (1, 9), (7, 7), (5, 9), (9, 5), (6, 0)]
CHUNKS = [1, 2, 3, 4, 9, 100]


def keys_of(query, seqlen_q, seqlen_k, chunk, causal):
    aligned = query + seqlen_k - seqlen_q
    return [
        j
        for j in range(seqlen_k)
        if j // chunk == aligned // chunk and not (causal and j > aligned)
    ]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_attends_the_keys_of_its_chunk(seqlen_q, seqlen_k, causal, chunk):
    """Queries of zero make all weights of a row the same; values are the rows of the identity."""
    q = torch.zeros(1, seqlen_q, 1, 16, dtype=torch.float16)
    k = torch.randn(1, seqlen_k, 1, 16).half()
    v = torch.eye(seqlen_k, 16, dtype=torch.float16).view(1, seqlen_k, 1, 16)
    out = attention(q, k, v, causal=causal, attention_chunk=chunk)
    for i in range(seqlen_q):
        keys = keys_of(i, seqlen_q, seqlen_k, chunk, causal)
        expected = torch.zeros(16)
        expected[keys] = 1 / max(1, len(keys))
        torch.testing.assert_close(out[0, i, 0].float(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 1 << 40])
@pytest.mark.parametrize("seqlens", [(113, 127), (257, 67), (1, 257), (131, 131)])
@pytest.mark.parametrize("window", [-1, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_results_and_gradients_are_the_formulas(seqlens, causal, window, chunk):
    shape = Shape("", 2, *seqlens, 4, heads_kv=2)
    mask = Mask("", causal=causal, window_left=window, attention_chunk=chunk)
    inputs, expected = inputs_and_expected(shape, torch.float16, 32, mask=mask)
    leaves = [x.detach().requires_grad_() for x in inputs]
    out, lse = attention(*leaves, return_lse=True, **mask.options)
    expected.check(out.detach(), lse)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    upstream = torch.randn_like(out)
    reference = attention_ref(*exact, dtype=torch.float64, **mask.options)[0]
    wanted = torch.autograd.grad(reference, exact, upstream.double())
    for a, b in zip(torch.autograd.grad(out, leaves, upstream), wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-2)


@pytest.mark.parametrize("chunk", [16, 50])
def test_packed_sequences_have_chunks_of_their_own(chunk):
    packed = Packed("", (70, 0, 9, 200), (65, 9, 0, 131), 4, 2)
    mask = Mask("", causal=True, attention_chunk=chunk)
    inputs = make_packed(packed, torch.bfloat16, 64)
    out, lse = attention_varlen(*inputs, return_lse=True, **mask.options)
    expect_varlen(*inputs[:5], **mask.options).check(out, lse)


def test_a_chunk_of_all_keys_needs_no_kernel_of_its_own():
    problem = {"batch": 1, "heads_q": 2, "heads_kv": 2, "seqlen_q": 64, "d_head": 64}

    def names(seqlen_k, chunk):
        asked = Problem(
            **problem,
            seqlen_k=seqlen_k,
            dtype="FP16",
            options={"causal": True, "attention_chunk": chunk},
        )
        return set(
            str(features_needed(asked, "(FP16, 64, 128, 64, 4): async+load_0_0_0_tiles")).split("+")
        )

    assert names(128, 128) == {"right_window"}
    assert names(128, 127) == {"right_window", "left_window"}
    assert names(32, 32) == {"right_window", "left_window"}  # queries before the first key


def test_refusals():
    inputs = make_inputs(Shape("", 1, 8, 8, 1), torch.float16, 16)
    with pytest.raises(ValueError, match="attention_chunk = -1: expected a number of keys, or 0"):
        attention(*inputs, attention_chunk=-1)
    with pytest.raises(TypeError, match="attention_chunk is float: expected an int"):
        attention(*inputs, attention_chunk=2.5)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 20])
def test_chunks_are_sequences_to_the_backward_of_a_gpu(chunk):
    """Causal, aligned at the end, they attend the same pairs."""
    lengths_q, lengths_k = (7, 0, 9, 4, 1), (5, 3, 12, 0, 8)
    starts = [torch.tensor([0, *itertools.accumulate(x)]).int() for x in (lengths_q, lengths_k)]
    cu_q, cu_k = _chunks(*starts, max(lengths_k), chunk)
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert len(cu_q) == len(cu_k)
    assert (cu_q[-1], cu_k[-1]) == (sum(lengths_q), sum(lengths_k))
    assert all((x.diff() >= 0).all() for x in (cu_q, cu_k))
    found = set()
    for begin_q, end_q, begin_k, end_k in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        for i in range(begin_q, end_q):
            last = end_k - (end_q - i) + 1  # bottom-right aligned
            found |= {(i, j) for j in range(begin_k, max(begin_k, last))}
    wanted = set()
    for b, (n_q, n_k) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        first_q, first_k = int(starts[0][b]), int(starts[1][b])
        for i in range(n_q):
            wanted |= {(first_q + i, first_k + j) for j in keys_of(i, n_q, n_k, chunk, True)}
    assert found == wanted


def test_the_reference_of_packed_sequences_is_that_of_each():
    packed = Packed("", (5, 9), (9, 5), 2, 1)
    inputs = make_packed(packed, torch.float16, 16)
    out, _ = attention_varlen_ref(*inputs[:5], causal=True, attention_chunk=4)
    q, k, v = inputs[:3]
    alone, _ = attention_ref(q[None, 5:], k[None, 9:], v[None, 9:], causal=True, attention_chunk=4)
    torch.testing.assert_close(out[5:], alone[0])
