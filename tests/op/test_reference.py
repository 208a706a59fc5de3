"""The reference agrees with PyTorch's attention, and the tolerance with its formula."""

import math

import pytest
import torch
from support.problems import GQA, MASKS, NO_MASK, PACKED, SHAPES, Shape, make_inputs, make_packed

from pyflash.op.reference import (
    attention_ref,
    attention_varlen_ref,
    check,
    expect,
    expect_varlen,
    tolerance,
)

SMALL = Shape("small", 2, 33, 17, 3)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.seqlen_k], ids=str)
def test_agrees_with_torch_in_fp64(shape):
    q, k, v = make_inputs(shape, torch.float64, 64)
    out, lse = attention_ref(q, k, v, softmax_scale=0.3, dtype=torch.float64)
    heads_first = (x.nan_to_num().transpose(1, 2) for x in (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention(*heads_first, scale=0.3)
    torch.testing.assert_close(out, sdpa.transpose(1, 2), rtol=1e-12, atol=1e-12)
    assert lse.shape == (shape.batch, shape.heads, shape.seqlen_q)


def by_loops(
    q,
    k,
    v,
    causal=False,
    window_left=-1,
    window_right=-1,
    attention_chunk=0,
    softcap=0.0,
    sinks=None,
):
    """(out, lse) of one batch, row by row, over the keys that the definition of the masks names."""
    (seqlen_q, heads, d_head), (seqlen_k, heads_kv, _) = q.shape, k.shape
    out, lse = torch.zeros_like(q), torch.full((heads, seqlen_q), -math.inf, dtype=q.dtype)
    limits = (window_left, 0 if causal else window_right)
    left, right = (math.inf if limit == -1 else limit for limit in limits)
    for h in range(heads):
        group = h // (heads // heads_kv)
        for i in range(seqlen_q):
            aligned = i + seqlen_k - seqlen_q
            keys = [j for j in range(seqlen_k) if -left <= j - aligned <= right]
            if attention_chunk:
                keys = [j for j in keys if j // attention_chunk == aligned // attention_chunk]
            scores = k[keys, group] @ q[i, h] / math.sqrt(d_head)
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            weights = scores.exp()
            denominator = weights.sum() + (0 if sinks is None else sinks[h].exp())
            if denominator > 0:
                lse[h, i] = denominator.log()
                out[i, h] = (weights / denominator) @ v[keys, group]
    return out, lse


SINKS = {"sinks": torch.tensor([-math.inf, -1.0, 0.5, 3.0], dtype=torch.float64)}


@pytest.mark.parametrize("mask", [NO_MASK, *MASKS], ids=str)
@pytest.mark.parametrize("lengths", [(17, 29), (31, 23), (5, 0)], ids=str)
@pytest.mark.parametrize("sinks", [{}, SINKS], ids=["no_sinks", "sinks"])
def test_options_and_groups_are_their_definition(sinks, lengths, mask):
    """Pitfall 16: causal where the lengths differ."""
    q, k, v = make_inputs(Shape("gqa", 1, *lengths, 4, heads_kv=2), torch.float64, 16)
    options = mask.options | sinks
    expected = by_loops(q[0], k[0], v[0], **options)
    for a, b in zip(attention_ref(q, k, v, dtype=q.dtype, **options), expected, strict=True):
        torch.testing.assert_close(a[0], b)


@pytest.mark.parametrize("shape", GQA, ids=str)
def test_groups_are_those_of_torch(shape):
    q, k, v = (x.nan_to_num() for x in make_inputs(shape, torch.float64, 64))
    out, _ = attention_ref(q, k, v, dtype=torch.float64)
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention(*heads_first, enable_gqa=True)
    torch.testing.assert_close(out, sdpa.transpose(1, 2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("packed", PACKED, ids=str)
def test_packed_sequences_are_attended_one_by_one(packed):
    q, k, v, starts_q, starts_k, *_ = make_packed(packed, torch.float16, 16)
    out, lse = attention_varlen_ref(q, k, v, starts_q, starts_k, causal=True)
    assert out.shape == q.shape
    assert lse.shape == (packed.heads, len(q))
    i = j = 0
    for n, m in zip(packed.seqlens_q, packed.seqlens_k, strict=True):
        sequence = (x[None] for x in (q[i : i + n], k[j : j + m], v[j : j + m]))
        expected_out, expected_lse = attention_ref(*sequence, causal=True)
        assert torch.equal(out[i : i + n], expected_out[0])
        assert torch.equal(lse[:, i : i + n], expected_lse[0])
        i, j = i + n, j + m


def test_lse_is_the_natural_logarithm_of_the_sum():
    q, k, v = (torch.ones(1, 1, 1, 64, dtype=torch.float16) for _ in range(3))
    _, lse = attention_ref(q, k.expand(1, 8, 1, 64), v.expand(1, 8, 1, 64), softmax_scale=0.5)
    assert lse.item() == pytest.approx(64 * 0.5 + math.log(8))


def test_scores_in_pieces_are_the_same(monkeypatch):
    q, k, v = make_inputs(SMALL, torch.float64, 64)
    whole = attention_ref(q, k, v, dtype=torch.float64)
    monkeypatch.setattr("pyflash.op.reference._MAX_SCORES", 5 * SMALL.batch * SMALL.heads * 17)
    pieces = attention_ref(q, k, v, dtype=torch.float64)
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)


def test_rows_with_nothing_to_attend_are_zero_and_minus_infinity():
    q, k, v = make_inputs(Shape("no_keys", 1, 3, 0, 2), torch.float16, 64)
    out, lse = attention_ref(q, k, v)
    assert torch.equal(out, torch.zeros(1, 3, 2, 64))
    assert torch.equal(lse, torch.full((1, 2, 3), -math.inf))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tolerance_is_the_rule(dtype):
    q, k, v = make_inputs(SMALL, dtype, 64)
    ref, _ = attention_ref(q, k, v)
    pt16, _ = attention_ref(q, k, v, dtype=dtype)
    ref16 = ref.to(dtype)
    expected = 2 * (pt16.float() - ref).abs().max() + 2 * (ref16 + 0.3 - 0.3 - ref16).abs().max()
    assert tolerance(ref, pt16) == pytest.approx(expected.item())
    # A unit of the 16-bit type at the values that come out, not much more.
    assert torch.finfo(dtype).eps / 4 < tolerance(ref, pt16) < 8 * torch.finfo(dtype).eps


def test_check_passes_what_is_right_and_refuses_what_is_beyond_the_bound():
    q, k, v = make_inputs(SMALL, torch.float16, 64)
    expected = expect(q, k, v)
    out, lse = expected.out.half(), expected.lse.float()
    error, bound = check(out, q, k, v, lse=lse)
    assert error < bound
    wrong = out.clone()
    wrong[1, 2, 0, 3] += 3 * bound
    with pytest.raises(AssertionError, match=r"at \(1, 2, 0, 3\)"):
        expected.check(wrong)
    lse[0, 1, 2] += 0.01
    with pytest.raises(AssertionError, match=r"lse: .* at \(0, 1, 2\)"):
        expected.check(out, lse)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_check_refuses_values_that_are_not_finite(poison):
    q, k, v = make_inputs(SMALL, torch.float16, 64)
    expected = expect(q, k, v)
    out = expected.out.half()
    out[0, 0, 0, 0] = poison
    with pytest.raises(AssertionError, match=r"at \(0, 0, 0, 0\)"):
        expected.check(out)
    lse = expected.lse.float()
    lse[0, 0, 0] = poison
    with pytest.raises(AssertionError, match="lse"):
        expected.check(expected.out.half(), lse)


def test_check_compares_infinities_of_lse():
    """Pitfall 10: rows with nothing to attend give NaN. They have lse = -inf and nothing else."""
    q, k, v = make_inputs(Shape("fewer_keys", 1, 5, 3, 2), torch.float16, 64)
    expected = expect(q, k, v, causal=True)
    out, lse = expected.out.half(), expected.lse.float()
    assert lse[0, 0, 1] == -math.inf
    expected.check(out, lse)
    for wrong in (math.inf, math.nan, -1e38, 0.0):
        changed = lse.clone()
        changed[0, 0, 1] = wrong
        with pytest.raises(AssertionError, match=r"lse: .* at \(0, 0, 1\)"):
            expected.check(out, changed)
    lse[0, 0, 4] = -math.inf
    with pytest.raises(AssertionError, match=r"lse: .* at \(0, 0, 4\)"):
        expected.check(out, lse)


def test_expectations_of_packed_sequences():
    arguments = make_packed(PACKED[1], torch.float16, 16)[:5]
    expected = expect_varlen(*arguments, causal=True)
    out, lse = attention_varlen_ref(*arguments, causal=True)
    assert expected.check(out.half(), lse) < expected.bound
    with pytest.raises(AssertionError, match="lse"):
        expected.check(out.half(), lse + 0.01)


def test_check_refuses_a_wrong_shape():
    q, k, v = make_inputs(SMALL, torch.float16, 64)
    expected = expect(q, k, v)
    with pytest.raises(AssertionError, match="expected"):
        expected.check(expected.out.half().transpose(1, 2))
    with pytest.raises(AssertionError, match="float32"):
        expected.check(expected.out.half(), expected.lse.half())
