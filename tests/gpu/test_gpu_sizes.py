"""Sizes on a GPU: beyond 32 bits, beyond a grid's limits, none at all; memory not copied."""

import pytest
import torch
from support.gpu_calls import attend, check
from support.memory_layout import Layout
from support.problems import EMPTY, NO_MASK, Mask, Shape, inputs_and_expected, make_inputs

from pyflash import attention, attention_varlen
from pyflash.op.reference import expect

pytestmark = pytest.mark.gpu

DTYPE = torch.float16
CAUSAL = Mask("causal", causal=True)
# More than 2^31 elements in a tensor of 64 heads of 128.
SEQLEN = 2**18 + 70


def needs_gigabytes(n):
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < n << 30:
        pytest.skip(f"needs {n} GB of free GPU memory")


def first_and_last(n, of):
    return slice(0, n), slice(of - n, of)


@pytest.mark.parametrize("mask", [NO_MASK, CAUSAL], ids=str)
def test_queries_beyond_32_bits(mask):
    """Pitfall 7: int32 offsets. The first and the last rows are right."""
    needs_gigabytes(60)
    q = torch.randn(1, SEQLEN, 64, 128, device="cuda", dtype=DTYPE)
    assert q.numel() > 2**31
    k, v = torch.randn(2, 1, 70, 64, 128, device="cuda", dtype=DTYPE)
    out, lse = attention(q, k, v, return_lse=True, **mask.options)
    first, last = first_and_last(70, SEQLEN)
    check(expect(q[:, last], k, v, **mask.options), (out[:, last], lse[:, :, last]), "last")
    if mask.options.get("causal"):  # bottom right: only the last 70 rows have keys
        assert not out[:, first].any()
        assert lse[:, :, first].eq(-torch.inf).all()
    else:
        check(expect(q[:, first], k, v), (out[:, first], lse[:, :, first]), "first")


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("mask", [NO_MASK, CAUSAL], ids=str)
def test_keys_beyond_32_bits(mask, num_splits):
    """Pitfall 7: int32 offsets."""
    needs_gigabytes(60)
    q = torch.randn(1, 70, 64, 128, device="cuda", dtype=DTYPE)
    k, v = (torch.randn(1, SEQLEN, 64, 128, device="cuda", dtype=DTYPE) for _ in "kv")
    results = attention(q, k, v, return_lse=True, num_splits=num_splits, **mask.options)
    expect(q, k, v, **mask.options).check(*results)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_packed_rows_beyond_32_bits(num_splits):
    """Pitfall 7: int32 offsets. A short sequence behind, and before, one of almost everything."""
    needs_gigabytes(60)
    q, k, v = (torch.randn(SEQLEN, 64, 128, device="cuda", dtype=DTYPE) for _ in "qkv")
    cu_q = torch.tensor([0, 70, SEQLEN - 70, SEQLEN], dtype=torch.int32, device="cuda")
    cu_k = torch.tensor([0, SEQLEN - 300, SEQLEN - 200, SEQLEN], dtype=torch.int32, device="cuda")
    lengths = (cu_q, cu_k, SEQLEN - 140, SEQLEN - 300)
    out, lse = attention_varlen(q, k, v, *lengths, return_lse=True, num_splits=num_splits)
    keys = (slice(0, SEQLEN - 300), slice(SEQLEN - 200, SEQLEN))
    for rows_q, rows_k in zip(first_and_last(70, SEQLEN), keys, strict=True):
        expected = expect(*(x[None, rows] for x, rows in ((q, rows_q), (k, rows_k), (v, rows_k))))
        check(expected, (out[None, rows_q], lse[None, :, rows_q]), rows_q)


@pytest.mark.parametrize(
    "shape",
    [
        Shape("batches", 65_537, 1, 3, 1),
        Shape("heads", 1, 2, 3, 65_540, heads_kv=65_540),
        Shape("query_heads", 1, 2, 3, 65_540, heads_kv=2),
        Shape("both", 300, 3, 5, 300, heads_kv=100),
    ],
    ids=str,
)
def test_more_batches_and_heads_than_65535(shape):
    """Pitfall 8: grids of more than 65535."""
    for mask in (NO_MASK, CAUSAL, Mask("softcap", softcap=2.0)):
        inputs, expected = inputs_and_expected(shape, DTYPE, 64, "cuda", mask)
        for num_splits in (0, 1, 3):
            results = attend(inputs, num_splits=num_splits, **mask.options)
            check(expected, results, mask, num_splits)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"num_splits": 3}], ids=str)
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_extents_give_empty_outputs(shape, options):
    """Pitfall 11: empty inputs."""
    out, lse = attend(make_inputs(shape, DTYPE, 128, "cuda"), **options)
    assert out.shape == (shape.batch, shape.seqlen_q, shape.heads, 128)
    assert lse.shape == (shape.batch, shape.heads, shape.seqlen_q)
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"softcap": 3.0}, {"num_splits": 3}], ids=str
)
def test_no_keys_give_zeros_and_minus_infinity(options):
    """Pitfall 10: rows with nothing to attend give NaN.
    Pitfall 25: what lse is: base, shape, padding. Rows without keys have one too."""
    q, k, v = make_inputs(Shape("no_keys", 2, 70, 0, 4, heads_kv=2), DTYPE, 64, "cuda")
    out, lse = attend((q, k, v), **options)
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, torch.full((2, 4, 70), -torch.inf, device="cuda"))


def allocated_by(call):
    """(what the call returns, the most it had allocated at a time, in bytes)"""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = call()
    return results, torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(
    ("shape", "d_head"),
    [
        pytest.param(Shape("gqa", 2, 128, 4096, 16, heads_kv=2), 128, id="gqa"),
        pytest.param(Shape("mqa_decode", 2, 1, 4096, 16, heads_kv=1), 128, id="mqa_decode"),
        pytest.param(Shape("heads_first", 2, 512, 4096, 4, "heads_first"), 64, id="heads_first"),
        pytest.param(Shape("padding", 2, 512, 4096, 4), 80, id="padded_columns"),
    ],
)
def test_nothing_is_copied(shape, d_head):
    """Only the results are allocated: no heads repeated, no columns padded, nothing reordered."""
    inputs = make_inputs(shape, DTYPE, d_head, "cuda")
    attention(*inputs, num_splits=1)
    results, n_bytes = allocated_by(lambda: attention(*inputs, return_lse=True, num_splits=1))
    assert n_bytes <= sum(x.nbytes for x in results) + 4096  # torch rounds sizes up
    assert n_bytes < inputs[1].nbytes


def test_dlpack_tensors():
    """Pitfall 14: 16-byte alignment, strides of dimensions of size 1.
    DLPack's are 1, not multiples of 16 bytes."""
    inputs, expected = inputs_and_expected(Shape("one_head", 1, 131, 67, 1), DTYPE, 64, "cuda")
    expected.check(*attend([torch.from_dlpack(x) for x in inputs]))
    odd = Layout((0, 1, 2, 3), (0,) * 4, (0,) * 4, (1,) * 4, odd_strides=True)
    expected.check(*attend([odd.place(x) for x in inputs]))
