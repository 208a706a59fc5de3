"""Packed sequences on a GPU: lengths that change, lie, or are many."""

import pytest
import torch
from support.gpu_calls import attend_packed, check
from support.problems import (
    MASKS,
    PACKED,
    Packed,
    Shape,
    inputs_and_expected,
    make_packed,
    packed_and_expected,
)

from pyflash.op.reference import expect_varlen

pytestmark = pytest.mark.gpu

DTYPE = torch.float16
RAGGED = Packed("ragged", (113, 1, 0, 300, 67), (127, 257, 9, 300, 0), 6, 2)


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("packed", PACKED, ids=str)
def test_the_best_known_config(packed, mask):
    """Pitfall 10: rows with nothing to attend give NaN."""
    arguments, expected = packed_and_expected(packed, torch.bfloat16, 64, "cuda", mask)
    expected.check(*attend_packed(arguments, **mask.options))


@pytest.mark.parametrize("d_head", [8, 40, 80, 120])
def test_narrow_heads(d_head):
    arguments, expected = packed_and_expected(RAGGED, DTYPE, d_head, "cuda")
    expected.check(*attend_packed(arguments))


def test_any_strides():
    """Pitfall 13: strides ignored. Heads before rows; slices of one projection."""
    q, k, v, *lengths = make_packed(RAGGED, DTYPE, 64, "cuda")
    heads_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    kv = torch.stack((k, v), dim=1)
    for inputs in (heads_first, (q, *kv.unbind(1))):
        expected = expect_varlen(*inputs, *lengths[:2], causal=True)
        expected.check(*attend_packed((*inputs, *lengths), causal=True))


def test_equal_lengths_are_a_batch():
    """lse: (batch, heads, seqlen_q) of one, (heads, total_q) of the other."""
    shape = Shape("batch", 3, 131, 197, 4, heads_kv=2)
    inputs, expected = inputs_and_expected(shape, DTYPE, 128, "cuda")
    lengths = [int32(*range(0, shape.batch * n + 1, n)) for n in (131, 197)]
    out, lse = attend_packed((*(x.flatten(0, 1) for x in inputs), *lengths, 131, 197))
    assert lse.shape == (4, 3 * 131)
    expected.check(*as_batch(out, lse, shape.batch))


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_the_largest_lengths_may_be_larger(mask):
    arguments, expected = packed_and_expected(RAGGED, DTYPE, 64, "cuda", mask)
    for slack in (1, 1000, 100_000):
        larger = (*arguments[:5], arguments[5] + slack, arguments[6] + slack)
        check(expected, attend_packed(larger, **mask.options), slack)


def test_rows_past_max_seqlen_q_are_left_alone():
    packed = Packed("one_too_long", (10, 190), (64, 300), 2, 2)
    arguments, expected = packed_and_expected(packed, DTYPE, 64, "cuda")
    out, lse = attend_packed((*arguments[:5], 128, 300))
    assert out[138:].isnan().all()
    assert lse[:, 138:].isnan().all()
    torch.testing.assert_close(out[:138].double(), expected.out[:138], atol=expected.bound, rtol=0)


WRONG = {
    "beyond_the_end": (0, 10**6, 2**31 - 1),
    "negative": (-(2**31), -5, 100),
    "descending": (300, 150, 0),
    "not_from_0": (100, 250, 300),
    "not_to_the_end": (0, 10, 20),
    "sum_overflows": (-(2**31), 2**31 - 1, 2**31 - 1),
}


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("which", ["q", "k", "both"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_cu_seqlens_read_and_write_nothing_else(wrong, which, num_splits):
    """The kernel clamps them to the tensors. The next call is right."""
    q, k, v, cu_q, cu_k, *_ = make_packed(
        Packed("two", (200, 100), (150, 150), 2, 2), DTYPE, 64, "cuda"
    )
    if which in ("q", "both"):
        cu_q = int32(*WRONG[wrong])
    if which in ("k", "both"):
        cu_k = int32(*WRONG[wrong])
    options = {"causal": True, "num_splits": num_splits}
    out, _ = attend_packed((q, k, v, cu_q, cu_k, 300, 300), **options)
    torch.cuda.synchronize()
    if which == "k":  # every row is an average of rows of v, none of the NaN around them
        assert (out.abs() <= v.abs().max() * 1.01).all()
    arguments, expected = packed_and_expected(RAGGED, DTYPE, 64, "cuda")
    expected.check(*attend_packed(arguments))


def test_more_sequences_than_65535():
    """Pitfall 8: grids of more than 65535."""
    shape = Shape("many_sequences", 70_001, 2, 3, 2, heads_kv=1)
    inputs, expected = inputs_and_expected(shape, DTYPE, 64, "cuda")
    lengths = [int32(*range(0, shape.batch * n + 1, n)) for n in (2, 3)]
    for num_splits in (1, 2):
        out, lse = attend_packed(
            (*(x.flatten(0, 1) for x in inputs), *lengths, 2, 3), num_splits=num_splits
        )
        check(expected, as_batch(out, lse, shape.batch), num_splits)


def as_batch(out, lse, batch):
    """Results of sequences of equal lengths, as `attention` gives them."""
    return out.unflatten(0, (batch, -1)), lse.unflatten(1, (batch, -1)).transpose(0, 1)
