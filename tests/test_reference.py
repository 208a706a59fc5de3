"""The reference agrees with PyTorch's attention, and the tolerance with its formula."""

import math

import pytest
import torch
from problems import SHAPES, Shape, make_inputs

from pyflash.reference import attention_ref, check, expect, tolerance

SMALL = Shape("small", 2, 33, 17, 3)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.seqlen_k], ids=str)
def test_agrees_with_torch_in_fp64(shape):
    q, k, v = make_inputs(shape, torch.float64, 64)
    out, lse = attention_ref(q, k, v, softmax_scale=0.3, dtype=torch.float64)
    heads_first = (x.nan_to_num().transpose(1, 2) for x in (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention(*heads_first, scale=0.3)
    torch.testing.assert_close(out, sdpa.transpose(1, 2), rtol=1e-12, atol=1e-12)
    assert lse.shape == (shape.batch, shape.heads, shape.seqlen_q)


def test_lse_is_the_natural_logarithm_of_the_sum():
    q, k, v = (torch.ones(1, 1, 1, 64, dtype=torch.float16) for _ in range(3))
    _, lse = attention_ref(q, k.expand(1, 8, 1, 64), v.expand(1, 8, 1, 64), softmax_scale=0.5)
    assert lse.item() == pytest.approx(64 * 0.5 + math.log(8))


def test_scores_in_pieces_are_the_same(monkeypatch):
    q, k, v = make_inputs(SMALL, torch.float64, 64)
    whole = attention_ref(q, k, v, dtype=torch.float64)
    monkeypatch.setattr("pyflash.reference._MAX_SCORES", 5 * SMALL.batch * SMALL.heads * 17)
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


def test_check_refuses_a_wrong_shape():
    q, k, v = make_inputs(SMALL, torch.float16, 64)
    expected = expect(q, k, v)
    with pytest.raises(AssertionError, match="expected"):
        expected.check(expected.out.half().transpose(1, 2))
    with pytest.raises(AssertionError, match="float32"):
        expected.check(expected.out.half(), expected.lse.half())
