"""`pyflash.schedule` and what takes it, on the CPU, whose results it leaves alone; the list that it
makes is that of tests/op/test_share_list.py."""

from __future__ import annotations

import pytest
import torch
from support.paged import Cache

import pyflash
from pyflash.op.schedule import BY_LENGTH

HEADS = 8
OPS = torch.ops.pyflash


@pytest.fixture
def cache():
    torch.manual_seed(0)
    return Cache((5, 100, 0, 33), 16)


def inputs_of(cache: Cache) -> tuple[torch.Tensor, ...]:
    return cache.k, cache.table, cache.seqlens


def queries(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, HEADS, 64).half()


def test_the_work_has_the_shares_of_all_blocks(cache):
    work = pyflash.schedule(HEADS, *inputs_of(cache)).work
    n_blocks = sum(-(-n // 64) for n in cache.lengths)
    assert cache.k.shape[2] == 2  # which go abreast: each has a CTA for every share
    assert (work.dtype, work.dim()) == (torch.int32, 1)
    total, size = work[:2].tolist()
    assert total == n_blocks + len(cache.lengths)
    shares = work[4:-8].view(-1, 4)  # and where the sequences start, rounded up
    assert shares[:, 3].sum() == total
    assert shares[:, 3].max() <= size


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_left": 30, "sinks": None}])
def test_results_are_those_without_it(cache, options):
    q = queries(4, 3)
    made = pyflash.schedule(HEADS, *inputs_of(cache), max_seqlen_q=3, **options)
    expected = pyflash.attention_paged(q, *cache.tensors, return_lse=True, **options)
    for given in ({"schedule": made}, {"num_splits": BY_LENGTH}):
        found = pyflash.attention_paged(q, *cache.tensors, return_lse=True, **given, **options)
        assert all(map(torch.equal, found, expected))
    out = torch.empty_like(q)
    pyflash.attention_paged(q, *cache.tensors, schedule=made, out=out, **options)
    assert torch.equal(out, expected[0])


def test_packed_queries_and_a_contiguous_cache(cache):
    starts = torch.tensor([0, 1, 3, 3, 6], dtype=torch.int32)
    packing = {"cu_seqlens_q": starts, "max_seqlen_q": 3}
    made = pyflash.schedule(HEADS, *inputs_of(cache), **packing)
    q = queries(6)
    found = pyflash.attention_paged(q, *cache.tensors, schedule=made, **packing)
    assert torch.equal(found, pyflash.attention_paged(q, *cache.tensors, **packing))
    k, v = torch.randn(2, 4, 50, 2, 64).half()
    lengths = torch.tensor([50, 0, 7, 1], dtype=torch.int32)
    rows = torch.arange(4, dtype=torch.int32)[:, None]
    made = pyflash.schedule(HEADS, k, rows, lengths)
    q = queries(4, 1)
    found = pyflash.attention_cached(q, k, v, lengths, schedule=made)
    assert torch.equal(found, pyflash.attention_cached(q, k, v, lengths))


def test_update_fills_the_same_memory(cache):
    made = pyflash.schedule(HEADS, *inputs_of(cache))
    address = made.work.data_ptr()
    cache.seqlens[2] = 1
    cache.table[2, 0] = cache.table[1, 0]
    assert made.update(*inputs_of(cache)) is made
    assert made.work.data_ptr() == address
    other = pyflash.schedule(HEADS, *inputs_of(cache)).work
    used = made.work.numel() - 8 + len(cache.lengths) + 1  # memory behind the starts is any
    assert torch.equal(made.work[:used], other[:used])


def test_arguments_that_do_not_fit_are_refused(cache):
    made = pyflash.schedule(HEADS, *inputs_of(cache))
    q, tensors = queries(4, 1), cache.tensors
    with pytest.raises(TypeError, match="schedule is int: expected a Schedule"):
        pyflash.attention_paged(q, *tensors, schedule=3)
    with pytest.raises(ValueError, match="num_splits = 2 came with a schedule: expected -1, or 0"):
        pyflash.attention_paged(q, *tensors, schedule=made, num_splits=2)
    with pytest.raises(ValueError, match="q has 4 heads: expected 8, as schedule"):
        pyflash.attention_paged(q[:, :, :4], *tensors, schedule=made)
    with pytest.raises(ValueError, match="schedule came with batch_invariant"):
        pyflash.attention_paged(q, *tensors, schedule=made, batch_invariant=True)
    with pytest.raises(ValueError, match=r"schedule has shape \(\d+,\): expected \(\d+,\)"):
        made.update(cache.k, cache.table.repeat(9, 1), cache.seqlens.repeat(9))
    with pytest.raises(ValueError, match="num_splits = 3 came with a schedule"):
        pyflash.schedule(HEADS, *inputs_of(cache), num_splits=3)
    with pytest.raises(ValueError, match=r"k_cache has shape .*: expected 4 dimensions"):
        pyflash.schedule(HEADS, cache.k[0], cache.table, cache.seqlens)
    with pytest.raises(ValueError, match="max_seqlen_q = -1: expected at least 0"):
        pyflash.schedule(HEADS, *inputs_of(cache), max_seqlen_q=-1)
    with pytest.raises(TypeError, match="heads is float: expected an int"):
        pyflash.schedule(8.0, *inputs_of(cache))
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'casual'"):
        pyflash.schedule(HEADS, *inputs_of(cache), casual=True)


def test_the_ops_refuse_what_python_does_not_pass(cache):
    q, tensors = queries(4, 1), cache.tensors
    work = pyflash.schedule(HEADS, *inputs_of(cache)).work
    for wrong, sentence in (
        (work.long(), "schedule is int64: expected int32"),
        (work[None], "expected a contiguous dimension"),
        (work[1:], "expected a contiguous dimension at a multiple of 16 bytes"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            OPS.fwd_paged(q, *tensors, None, None, None, None, wrong, num_splits=BY_LENGTH)
    with pytest.raises(RuntimeError, match="schedule came with num_splits = 0: expected -1"):
        OPS.fwd_paged(q, *tensors, None, None, None, None, work)
    with pytest.raises(RuntimeError, match="num_splits = 0: expected -1"):
        OPS.plan_schedule(HEADS, *inputs_of(cache))


def test_opcheck(cache):
    made = pyflash.schedule(HEADS, *inputs_of(cache), causal=True)
    options = {"causal": True, "num_splits": BY_LENGTH}
    utils = {"test_utils": ("test_schema", "test_faketensor")}
    inputs = (made.work, HEADS, *inputs_of(cache))
    torch.library.opcheck(OPS.fill_schedule.default, inputs, options, **utils)
    inputs = (queries(4, 1), *cache.tensors, None, None, None, None, made.work)
    torch.library.opcheck(OPS.fwd_paged.default, inputs, options, **utils)


def test_layers_under_torch_compile_share_it(cache):
    made = pyflash.schedule(HEADS, *inputs_of(cache), causal=True)

    def layers(q):
        made.update(*inputs_of(cache))
        for _ in range(2):
            q = pyflash.attention_paged(q, *cache.tensors, schedule=made, causal=True)
        return q

    q = queries(4, 1)
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), layers(q))


def test_splits_by_length_of_packed_sequences_change_nothing_here():
    starts = torch.tensor([0, 3, 4], dtype=torch.int32)
    q, k, v = torch.randn(3, 4, 2, 64).half()
    inputs = (q, k, v, starts, starts, 3, 3)
    expected = pyflash.attention_varlen(*inputs)
    assert torch.equal(pyflash.attention_varlen(*inputs, num_splits=BY_LENGTH), expected)
    with pytest.raises(ValueError, match="num_splits = -2 came without batch_inv"):
        pyflash.attention_varlen(*inputs, num_splits=-2)
