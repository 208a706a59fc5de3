"""Lengths of padded sequences, seqlens_q and seqlens_k, on the CPU."""

import pytest
import torch
from support.problems import new_memory_is_nan
from support.uneven import check_used, make_uneven, run_uneven
from torch._subclasses.fake_tensor import FakeTensorMode

from pyflash import attention


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other cost more than such small matrices take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("seeds", [range(50), range(50, 100)], ids=str)
def test_random_lengths(seeds):
    for seed in seeds:
        with new_memory_is_nan():
            run_uneven(seed, longest=130)


@pytest.mark.parametrize("which", ["seqlens_q", "seqlens_k"])
def test_one_of_the_lengths(which):
    q, k, v = torch.randn(3, 2, 9, 2, 16).half()
    told = attention(q, k, v, causal=True, **{which: int32(9, 4)})
    both = {"seqlens_q": int32(9, 9), "seqlens_k": int32(9, 9), which: int32(9, 4)}
    assert torch.equal(told, attention(q, k, v, causal=True, **both))
    assert not torch.equal(told[1], attention(q, k, v, causal=True)[1])


def test_gradients_of_rows_past_the_ends_are_zero():
    """Also where what comes from above, and the rows, are NaN."""
    leaves = [torch.randn(3, n, 2, 32).half() for n in (7, 11, 11)]
    lengths = [[7, 0, 3], [11, 5, 4], [11, 5, 4]]
    for x, used in zip(leaves, lengths, strict=True):
        for b, n in enumerate(used):
            x[b, n:] = torch.nan
        x.requires_grad_()
    told = {"seqlens_q": int32(*lengths[0]), "seqlens_k": int32(*lengths[1])}
    upstream = torch.randn(3, 7, 2, 32).half()
    out = attention(*leaves, causal=True, **told)
    gradients = torch.autograd.grad(out, leaves, upstream)
    for b in range(3):
        alone = [x[b : b + 1, : used[b]] for x, used in zip(leaves, lengths, strict=True)]
        out = attention(*alone, causal=True)
        expected = torch.autograd.grad(out, alone, upstream[b : b + 1, : lengths[0][b]])
        for x, y, used in zip(gradients, expected, lengths, strict=True):
            assert torch.equal(x[b, : used[b]], y[0])
            assert (x[b, used[b] :] == 0).all()


def test_one_graph_serves_any_lengths():
    torch.compiler.reset()
    case = make_uneven(3)

    def attend(q, k, v, lengths_q, lengths_k):
        told = {"seqlens_q": lengths_q, "seqlens_k": lengths_k}
        return attention(q, k, v, return_lse=True, **told, **case.options)

    graph = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=False)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ((case.seqlens_q, case.seqlens_k), (case.seqlens_q // 2, case.seqlens_k)):
            inputs = (case.q, case.k, case.v, *lengths)
            for x, y in zip(graph(*inputs), attend(*inputs), strict=True):
                torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def test_shapes_come_without_values():
    with FakeTensorMode():
        q, k = torch.empty(3, 5, 4, 32).half(), torch.empty(3, 9, 2, 32).half()
        lengths = torch.empty(3, dtype=torch.int32)
        out, lse = attention(q, k, k, seqlens_k=lengths, return_lse=True)
    assert out.shape == (3, 5, 4, 32)
    assert lse.shape == (3, 4, 5)
    assert lse.is_contiguous()


def test_slopes_of_each_sequence():
    q, k, v = torch.randn(3, 2, 9, 4, 16).half()
    slopes = torch.rand(2, 4)
    out = attention(q, k, v, seqlens_k=int32(9, 5), causal=True, alibi_slopes=slopes)
    alone = attention(q[1:], k[1:, :5], v[1:, :5], causal=True, alibi_slopes=slopes[1:])
    assert torch.equal(out[1:], alone)


def test_no_sequences_and_no_rows():
    for batch, seqlen in ((0, 5), (2, 0)):
        q = torch.randn(batch, 3, 2, 16).half()
        k = torch.randn(batch, seqlen, 2, 16).half()
        lengths = torch.zeros(batch, dtype=torch.int32)
        out, lse = attention(q, k, k, seqlens_k=lengths, return_lse=True)
        assert (out == 0).all()
        assert lse.shape == (batch, 2, 3)


Q = torch.zeros(2, 4, 2, 16).half()


@pytest.mark.parametrize(
    ("told", "error", "words"),
    [
        ({"seqlens_q": int32(1, 5)}, ValueError, r"seqlens_q\[1\] = 5: expected a number from 0"),
        ({"seqlens_k": int32(-1, 2)}, ValueError, r"seqlens_k\[0\] = -1: expected"),
        ({"seqlens_k": int32(1)}, ValueError, r"seqlens_k has shape \(1,\): expected \(2,\)"),
        ({"seqlens_q": int32(1, 2).long()}, ValueError, "seqlens_q is int64: expected int32"),
        ({"seqlens_q": [1, 2]}, TypeError, "seqlens_q is list: expected a tensor or None"),
        ({"seqlens_q": int32(1, 2), "variant": "causal"}, ValueError, "variant came with seqlens"),
    ],
)
def test_refusals(told, error, words):
    with pytest.raises(error, match=words):
        attention(Q, Q, Q, **told)


def test_the_check_sees_a_row_too_many():
    case = make_uneven(5)
    out, lse = attention(case.q, case.k, case.v, return_lse=True, **case.options)
    with pytest.raises(AssertionError):
        check_used(case, out, lse)


def test_batch_invariant_rows_have_the_bits_of_their_sequence_alone():
    q, k, v = torch.randn(3, 2, 40, 4, 64, generator=torch.Generator().manual_seed(0)).half()
    lengths = torch.tensor([40, 17], dtype=torch.int32)
    padded = attention(q, k, v, seqlens_q=lengths, seqlens_k=lengths, batch_invariant=True)
    alone = attention(*(x[1:, :17] for x in (q, k, v)), batch_invariant=True)
    assert torch.equal(padded[1, :17], alone[0])
    assert not padded[1, 17:].any()
