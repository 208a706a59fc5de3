"""Causal masks, windows, softcap, groups of heads and head dimensions, on the CPU."""

import math

import pytest
import torch
from support.problems import (
    GQA,
    MASKS,
    NO_MASK,
    Mask,
    Shape,
    inputs_and_expected,
    make_inputs,
    new_memory_is_nan,
)

from pyflash import FlashForwardKernelConfig, attention
from pyflash.op.reference import expect

# They differ in blocks and softmax.
CONFIGS = [
    "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 64, 128, 32, 4): async+load_0_0_0_tiles",
]
SHAPES = [
    Shape("primes", 1, 113, 127, 2),
    Shape("fewer_keys", 1, 257, 67, 2),  # causal: the first rows have nothing to attend
    Shape("more_keys", 1, 67, 257, 4, heads_kv=2),
    Shape("one_query", 2, 1, 257, 4, heads_kv=2),
    Shape("nan_past_the_end", 1, 113, 127, 4, "nan_around", heads_kv=1),
]
CAUSAL = Mask("causal", causal=True)


@pytest.mark.parametrize("config", CONFIGS, ids=["opt", "plain"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_are_within_tolerance(shape, mask, config):
    """Pitfall 12: lengths that are no multiple of the tile."""
    inputs, expected = inputs_and_expected(shape, torch.float16, 64, mask=mask)
    with new_memory_is_nan():
        out, lse = attention(*inputs, config=config, return_lse=True, **mask.options)
    expected.check(out, lse)


def attended(seqlen_q, seqlen_k, **options):
    """(out, lse) of queries of zero, so that all weights of a row are the same, and of values that
    are the rows of the identity: out[i, j] is what query i makes of key j."""
    q = torch.zeros(1, seqlen_q, 1, 8, dtype=torch.float16)
    k = torch.randn(1, seqlen_k, 1, 8).half()
    v = torch.eye(seqlen_k, 8, dtype=torch.float16).view(1, seqlen_k, 1, 8)
    out, lse = attention(q, k, v, return_lse=True, **options)
    return out[0, :, 0, :seqlen_k], lse[0, 0]


def test_causal_is_aligned_with_the_last_key():
    """Pitfall 16: causal where the lengths differ."""
    out, lse = attended(3, 5, causal=True)
    expected = [[1 / 3, 1 / 3, 1 / 3, 0, 0], [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0], [1 / 5] * 5]
    torch.testing.assert_close(out.float(), torch.tensor(expected), rtol=0, atol=1e-3)
    torch.testing.assert_close(lse, torch.tensor([3.0, 4.0, 5.0]).log())


def test_rows_with_nothing_to_attend_are_zero_and_minus_infinity():
    """Pitfall 10: rows with nothing to attend give NaN."""
    out, lse = attended(5, 3, causal=True)
    expected = [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]
    torch.testing.assert_close(out.float(), torch.tensor(expected), rtol=0, atol=1e-3)
    inf = math.inf
    torch.testing.assert_close(lse, torch.tensor([-inf, -inf, 0, math.log(2), math.log(3)]))


@pytest.mark.parametrize("seqlen_q", [1, 4, 7, 12])
@pytest.mark.parametrize("window_left", [-1, 0, 2, 9])
@pytest.mark.parametrize("window_right", [-1, 0, 3, 9])
def test_windows_are_the_formula(seqlen_q, window_left, window_right):
    seqlen_k = 7
    out, lse = attended(seqlen_q, seqlen_k, window_left=window_left, window_right=window_right)
    for i in range(seqlen_q):
        distances = [j - (i + seqlen_k - seqlen_q) for j in range(seqlen_k)]
        keys = [
            (window_left == -1 or -window_left <= distance)
            and (window_right == -1 or distance <= window_right)
            for distance in distances
        ]
        assert (out[i] > 0).tolist() == keys
        assert lse[i].item() == pytest.approx(math.log(sum(keys)) if any(keys) else -math.inf)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_causal_is_a_right_window_of_zero(shape):
    inputs, _ = inputs_and_expected(shape, torch.float16, 64)
    causal = attention(*inputs, causal=True)
    assert torch.equal(causal, attention(*inputs, window_right=0))
    assert torch.equal(causal, attention(*inputs, causal=True, window_right=0))


def test_windows_that_cut_nothing_change_no_bit():
    q, k, v = make_inputs(Shape("ragged", 1, 131, 197, 2), torch.float16, 64)
    full = attention(q, k, v)
    assert torch.equal(full, attention(q, k, v, window_left=196, window_right=130))
    assert not torch.equal(full, attention(q, k, v, window_left=195))
    assert not torch.equal(full, attention(q, k, v, window_right=129))


@pytest.mark.parametrize("softcap", [0.01, 1.0, 50.0])
def test_softcap_of_large_scores(softcap):
    """Without the cap, one key of each row would take it all; lse is that of the capped scores."""
    q, k, v = make_inputs(Shape("ragged", 1, 70, 131, 2), torch.bfloat16, 64)
    q = q * 20
    out, lse = attention(q, k, v, softcap=softcap, return_lse=True)
    expect(q, k, v, softcap=softcap).check(out, lse)
    assert lse.max() < softcap + math.log(131) + 1e-4


# Groups of heads


@pytest.mark.parametrize("mask", [NO_MASK, MASKS[0], MASKS[5]], ids=str)
@pytest.mark.parametrize("shape", GQA, ids=str)
def test_groups_are_within_tolerance(shape, mask):
    inputs, expected = inputs_and_expected(shape, torch.bfloat16, 64, mask=mask)
    with new_memory_is_nan():
        out, lse = attention(*inputs, return_lse=True, **mask.options)
    expected.check(out, lse)


@pytest.mark.parametrize("shape", GQA, ids=str)
def test_groups_are_repeated_heads(shape):
    """Head h of q attends head h // group of k and v: the bits are those of repeated k and v."""
    q, k, v = make_inputs(shape, torch.float16, 64)
    repeated = (x.repeat_interleave(shape.heads // shape.kv, dim=2) for x in (k, v))
    for a, b in zip(
        attention(q, k, v, causal=True, return_lse=True),
        attention(q, *repeated, causal=True, return_lse=True),
        strict=True,
    ):
        assert torch.equal(a, b)


# Head dimensions


@pytest.mark.parametrize("d_head", [8, 32, 40, 64, 80, 96, 128, 160, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_any_head_dimension(dtype, d_head):
    """Pitfall 15: head dimensions that are not built. The scale is that of the true dimension."""
    shape = Shape("ragged", 1, 67, 131, 2, heads_kv=1)
    inputs, expected = inputs_and_expected(shape, dtype, d_head, mask=CAUSAL)
    expected.check(*attention(*inputs, return_lse=True, causal=True))


@pytest.mark.parametrize("d_head", [8, 72, 120])
@pytest.mark.parametrize("layout", ["nan_around", "sliced"])
def test_a_config_runs_smaller_head_dimensions(d_head, layout):
    """Pitfall 15: head dimensions that are not built. Nothing past the row is read: NaN, or the
    columns of wider rows."""
    config = FlashForwardKernelConfig.parse("(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles")
    inputs, expected = inputs_and_expected(
        Shape("ragged", 1, 67, 131, 2, layout), torch.float16, d_head
    )
    out, lse = attention(*inputs, config=config, return_lse=True)
    assert out.shape == inputs[0].shape
    expected.check(out, lse)


@pytest.mark.parametrize("num_splits", [1, 2, 128])
def test_splits_change_nothing_on_the_cpu(num_splits):
    inputs = make_inputs(Shape("decode", 2, 1, 700, 8, heads_kv=2), torch.float16, 64)
    assert torch.equal(attention(*inputs), attention(*inputs, num_splits=num_splits))
