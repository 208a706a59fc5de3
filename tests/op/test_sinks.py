"""Attention sinks on the CPU: logits, one a head, that join the softmax denominator alone."""

import math
import re

import pytest
import torch
from support.problems import NO_MASK, Mask, Packed, Shape, make_inputs, make_packed
from support.refusals import CONFIG, packed, qkv

import pyflash  # noqa: F401  (registers torch.ops.pyflash)
from pyflash.op.reference import expect, expect_varlen

fwd, fwd_varlen = torch.ops.pyflash.fwd, torch.ops.pyflash.fwd_varlen
SOFTMAXES = [CONFIG, CONFIG.replace("+opt_softmax", "")]
MASKS = [NO_MASK, Mask("causal", causal=True), Mask("cap", window_left=40, softcap=3.0)]
SHAPES = [
    Shape("several_blocks", 2, 131, 197, 2),
    Shape("groups", 1, 67, 131, 6, heads_kv=2),
    Shape("one_query", 2, 1, 131, 6, heads_kv=2),
    Shape("one_query_without_groups", 1, 1, 131, 3),
    Shape("rows_without_keys", 1, 150, 70, 2),
    Shape("no_keys", 2, 5, 0, 2),
]


def sinks_of(n_heads, dtype=torch.float32):
    return torch.linspace(-2, 9, n_heads).to(dtype)


def with_sinks(out, lse, sinks):
    """What sinks make of attention without: the weights of the keys shrink alike."""
    sinks = sinks.float()[:, None].expand_as(lse)
    shrunk = torch.sigmoid(lse - sinks)  # exp(lse) / (exp(lse) + exp(sink))
    return out.float() * shrunk.transpose(-1, -2)[..., None], torch.logaddexp(lse, sinks)


def assert_close(results, expected, bound):
    for result, value in zip(results, expected, strict=True):
        assert torch.equal(result.isinf(), value.isinf())
        assert (result.float() - value).nan_to_num(0).abs().max() <= bound
    assert not results[0].isnan().any()


@pytest.mark.parametrize("sinks_dtype", [torch.float32, None], ids=["fp32", "as_q"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_padded(shape, mask, dtype, sinks_dtype):
    inputs = make_inputs(shape, dtype, 64)
    sinks = sinks_of(shape.heads, sinks_dtype or dtype)
    reference = expect(*inputs, **mask.options)
    expected = with_sinks(reference.out, reference.lse, sinks)
    for config in SOFTMAXES:
        config = config.replace("FP16", "FP16" if dtype == torch.float16 else "BF16")
        assert_close(
            fwd(*inputs, sinks=sinks, config=config, **mask.options), expected, reference.bound
        )


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_packed(mask):
    inputs = make_packed(Packed("", (33, 0, 1, 70), (131, 5, 67, 0), 4, 2), torch.float16, 64)
    sinks = sinks_of(4)
    reference = expect_varlen(*inputs[:5], **mask.options)
    results = fwd_varlen(*inputs, sinks=sinks, **mask.options)
    assert_close(results, with_sinks(reference.out, reference.lse, sinks), reference.bound)


@pytest.mark.parametrize("config", SOFTMAXES)
def test_a_sink_is_a_column_of_scores_whose_value_is_zero(config):
    q, k, v = make_inputs(Shape("", 1, 70, 131, 3), torch.float16, 64)
    sinks = sinks_of(3)
    heads = [x[0].transpose(0, 1).float() for x in (q, k, v)]
    scores = heads[0] @ heads[1].transpose(1, 2) / 8
    scores = torch.cat([scores, sinks[:, None, None].expand(3, 70, 1)], dim=-1)
    expected = scores.softmax(-1)[..., :-1] @ heads[2]
    out, lse = fwd(q, k, v, sinks=sinks, config=config)
    torch.testing.assert_close(out[0].transpose(0, 1).float(), expected, atol=1e-3, rtol=1e-2)
    torch.testing.assert_close(lse[0], scores.logsumexp(-1))


@pytest.mark.parametrize("config", SOFTMAXES)
def test_extreme_sinks(config):
    """-inf is no sink; one far above all scores leaves nothing, without an overflow."""
    inputs = make_inputs(Shape("", 1, 70, 131, 4), torch.float16, 64)
    sinks = torch.tensor([-math.inf, -300.0, 300.0, 1e30])
    out, lse = fwd(*inputs, sinks=sinks, config=config)
    plain_out, plain_lse = fwd(*inputs, config=config)
    assert torch.equal(out[:, :, :2], plain_out[:, :, :2])
    assert torch.equal(lse[:, :2], plain_lse[:, :2])
    assert torch.equal(out[:, :, 2:], torch.zeros_like(out[:, :, 2:]))
    assert torch.equal(lse[:, 2:], sinks[2:, None].expand(1, 2, 70))


def test_rows_with_nothing_to_attend():
    q, k, v = make_inputs(Shape("", 2, 5, 0, 3), torch.float16, 64)
    sinks = torch.tensor([1.5, -math.inf, -40.0])
    out, lse = fwd(q, k, v, sinks=sinks)
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, sinks[:, None].expand(2, 3, 5))


REFUSED = {
    "of another dtype": (
        torch.zeros(4, dtype=torch.bfloat16),
        "sinks is bfloat16: expected float32, or float16 as q",
    ),
    "of one head": (torch.zeros(1), "sinks has shape (1,): expected (4,), the heads of q"),
    "of rank 2": (torch.zeros(1, 4), "sinks has shape (1, 4): expected (4,), the heads of q"),
    "not contiguous": (
        torch.zeros(8)[::2],
        "sinks has stride 2: expected 1, call .contiguous()",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    sinks, sentence = REFUSED[case]
    for op, arguments in ((fwd, qkv()), (fwd_varlen, packed())):
        with pytest.raises(RuntimeError, match=f"^pyflash: {re.escape(sentence)}$"):
            op(**arguments, sinks=sinks)
