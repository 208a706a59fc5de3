"""Packed sequences, on the CPU."""

import pytest
import torch
from support.problems import (
    MASKS,
    NO_MASK,
    PACKED,
    Mask,
    Packed,
    make_packed,
    new_memory_is_nan,
    packed_and_expected,
)

from pyflash import attention, attention_varlen

CAUSAL = Mask("causal", causal=True)
RAGGED = Packed("ragged", (65, 0, 200, 1), (63, 9, 131, 70), 6, 2)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("mask", [NO_MASK, *MASKS[::2], MASKS[-1]], ids=str)
@pytest.mark.parametrize("packed", PACKED, ids=str)
def test_packed_sequences_are_within_tolerance(packed, mask):
    """Pitfall 11: empty inputs. Some sequences have no rows, or no keys; NaN is around all of them
    and in the memory of the outputs before the call."""
    inputs, expected = packed_and_expected(packed, torch.float16, 64, mask=mask)
    with new_memory_is_nan():
        out, lse = attention_varlen(*inputs, return_lse=True, **mask.options)
    expected.check(out, lse)
    assert out.is_contiguous()
    assert lse.is_contiguous()


@pytest.mark.parametrize("d_head", [8, 80, 256])
def test_any_head_dimension(d_head):
    """Pitfall 15: head dimensions that are not built."""
    inputs, expected = packed_and_expected(RAGGED, torch.bfloat16, d_head, mask=CAUSAL)
    expected.check(*attention_varlen(*inputs, causal=True, return_lse=True))


# But for windows to the left, which move the blocks of keys of a single query.
@pytest.mark.parametrize("mask", [NO_MASK, CAUSAL, Mask("right", window_right=40)], ids=str)
def test_each_sequence_is_attention_of_its_own(mask):
    """Pitfall 25: what lse is: base, shape, padding. It is (heads, total_q)."""
    q, k, v, *lengths = make_packed(RAGGED, torch.bfloat16, 64)
    out, lse = attention_varlen(q, k, v, *lengths, return_lse=True, **mask.options)
    assert lse.shape == (6, 266)
    starts_q, starts_k = (x.tolist() for x in lengths[:2])
    for b in range(4):
        rows_q = slice(starts_q[b], starts_q[b + 1])
        rows_k = slice(starts_k[b], starts_k[b + 1])
        alone = (q[None, rows_q], k[None, rows_k], v[None, rows_k])
        alone_out, alone_lse = attention(*alone, return_lse=True, **mask.options)
        assert torch.equal(out[rows_q], alone_out[0])
        assert torch.equal(lse[:, rows_q], alone_lse[0])


def test_larger_maximal_lengths_change_no_bit():
    *tensors, max_q, max_k = make_packed(RAGGED, torch.float16, 64)
    options = {"causal": True, "window_left": 40, "return_lse": True}
    exact = attention_varlen(*tensors, max_q, max_k, **options)
    larger = attention_varlen(*tensors, max_q + 1000, 2**29, **options)
    for a, b in zip(exact, larger, strict=True):
        assert torch.equal(a, b)


def test_strides_of_packed_qkv():
    """Pitfall 13: strides ignored."""
    qkv = torch.randn(100, 3, 4, 64).half()
    lengths = (int32(0, 33, 100), int32(0, 33, 100), 67, 67)
    views, copies = qkv.unbind(1), (x.contiguous() for x in qkv.unbind(1))
    assert torch.equal(attention_varlen(*views, *lengths), attention_varlen(*copies, *lengths))


def test_one_sequence_for_every_query():
    """More sequences than there are threads, or blocks in a grid's y and z."""
    n = 70_000
    q, k, v = (torch.randn(n, 1, 8).half() for _ in range(3))
    starts = torch.arange(n + 1, dtype=torch.int32)
    out, lse = attention_varlen(q, k, v, starts, starts, 1, 1, return_lse=True)
    assert torch.equal(out, v)
    torch.testing.assert_close(lse[0], (q.float() * k.float()).sum(-1)[:, 0] / 8**0.5)


@pytest.mark.parametrize("config", ["", "(FP16, 128, 128, 32, 4): async+load_0_0_0_tiles"])
def test_named_configs_run_packed_sequences(config):
    inputs, expected = packed_and_expected(RAGGED, torch.float16, 96)
    expected.check(*attention_varlen(*inputs, config=config, return_lse=True))
