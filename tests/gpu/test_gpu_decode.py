"""Few queries against many keys on a GPU: splits of the keys and their merge, groups of heads."""

import pytest
import torch
from support.gpu_calls import attend, built_for, check
from support.problems import NO_MASK, Mask, Shape, inputs_and_expected, make_inputs

from pyflash import DType, Features, attention
from pyflash.op.reference import expect

pytestmark = pytest.mark.gpu

DTYPE = torch.bfloat16
CAUSAL = Mask("causal", causal=True)


def on_gpu(shape, d_head=128, mask=NO_MASK):
    return inputs_and_expected(shape, DTYPE, d_head, "cuda", mask)


@pytest.mark.parametrize("heads_kv", [1, 2, 5])
@pytest.mark.parametrize("group", [1, 2, 7, 16, 64, 71, 130])
def test_one_query_and_groups_of_heads(group, heads_kv):
    """Groups of more heads than a tile has rows; each head with keys of its own group."""
    for batch, seqlen_k in ((1, 4096), (2, 1031), (3, 5), (2, 0)):
        shape = Shape("decode", batch, 1, seqlen_k, group * heads_kv, heads_kv=heads_kv)
        for d_head in (64, 80):
            inputs, expected = on_gpu(shape, d_head)
            for options in ({}, {"causal": True}, {"num_splits": 3}):
                check(expected, attend(inputs, **options), shape.seqlen_k, d_head, options)


@pytest.mark.parametrize("layout", ["nan_around", "heads_first", "sliced", "expanded"])
def test_one_query_of_any_strides(layout):
    """Pitfall 13: strides ignored."""
    shape = Shape("decode", 3, 1, 777, 12, layout, heads_kv=3)
    inputs, expected = on_gpu(shape)
    for num_splits in (0, 1, 4):
        check(expected, attend(inputs, num_splits=num_splits), num_splits)


@pytest.mark.parametrize("seqlen_q", [1, 2, 5, 17, 70])
def test_few_queries_against_a_long_past(seqlen_q):
    shape = Shape("past", 1, seqlen_q, 8191, 8, heads_kv=2)
    for mask in (NO_MASK, CAUSAL, Mask("window", causal=True, window_left=1000)):
        inputs, expected = on_gpu(shape, mask=mask)
        check(expected, attend(inputs, **mask.options), mask)


def test_merged_splits_are_one_pass():
    """lse is exact to fp32, out to the last bits of its type."""
    shape = Shape("past", 2, 33, 2000, 8, heads_kv=2)
    inputs, expected = on_gpu(shape)
    out, lse = attend(inputs, num_splits=1)
    for num_splits in (2, 5, 16, 128):
        split_out, split_lse = attend(inputs, num_splits=num_splits)
        torch.testing.assert_close(split_lse, lse, atol=1e-5, rtol=1e-6)
        assert (split_out.float() - out.float()).abs().max() <= expected.bound


def test_splits_are_chosen_where_the_grid_is_small():
    """They take memory for what is to be merged, one pass takes none."""
    few, _ = on_gpu(Shape("few", 1, 1, 16384, 8, heads_kv=2))
    many, _ = on_gpu(Shape("many", 64, 256, 256, 16))
    assert temporary_bytes(few, num_splits=1) == temporary_bytes(many, num_splits=1) == 0
    assert temporary_bytes(few) > 0
    assert temporary_bytes(many) == 0


def temporary_bytes(inputs, **options):
    """Allocated during the call and free after it."""
    attention(*inputs, **options)
    torch.cuda.reset_peak_memory_stats()
    results = attention(*inputs, return_lse=True, **options)
    peak = torch.cuda.max_memory_allocated()
    assert len(results) == 2
    return peak - torch.cuda.memory_allocated()


def test_the_same_bits_with_splits():
    """Pitfall 19: other bits from run to run. Splits are merged in order, not by atomics."""
    inputs, _ = on_gpu(Shape("few", 1, 1, 16384, 8, heads_kv=2))
    first = attend(inputs)
    for _ in range(9):
        for a, b in zip(first, attend(inputs), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("num_splits", [-2, 129])
def test_numbers_of_splits_that_are_refused(num_splits):
    inputs, _ = on_gpu(Shape("few", 1, 1, 64, 8, heads_kv=2))
    with pytest.raises(ValueError, match=f"pyflash: num_splits = {num_splits}"):
        attention(*inputs, num_splits=num_splits)


# Those for batch_invariant are built for fewer masks.
FEW_QUERIES = Features(right_window=True, left_window=True, predicated_head_dim=True, sinks=True)
PACKING = [
    config
    for config in built_for(FEW_QUERIES)
    if getattr(config, "pack_gqa", False) and config.dtype is DType.BF16
]


def most_ctas(config):
    """That run at a time."""
    device = torch.cuda.get_device_properties("cuda")
    return device.multi_processor_count * config.num_ctas_per_sm(10 * device.major + device.minor)


@pytest.mark.parametrize("config", PACKING, ids=str)
@pytest.mark.parametrize("num_splits", [1, 2, 3, 5, 8, 13, 16, 17, 40])
def test_clusters_merge_their_splits(config, num_splits):
    """Up to 16 splits without temporary memory, where their clusters run at a time; splits with
    nothing to attend among them."""
    for seqlen_q, seqlen_k, mask in (
        (1, 1031, NO_MASK),
        (3, 1031, CAUSAL),
        (5, 300, Mask("window", causal=True, window_left=100)),
        (16, 70, CAUSAL),
    ):
        shape = Shape("few", 3, seqlen_q, seqlen_k, 12, heads_kv=3)
        for d_head in (config.d_head, config.d_head - 8):
            inputs, expected = on_gpu(shape, d_head, mask)
            options = {"config": config, "num_splits": num_splits, **mask.options}
            results = attend(inputs, **options)
            check(expected, results, shape, d_head, options)
            for a, b in zip(results, attend(inputs, **options), strict=True):
                assert torch.equal(a, b)
    n_tiles = 3 * 3  # sequences by heads of K
    takes_memory = num_splits > 16 or n_tiles * num_splits > most_ctas(config)
    assert (temporary_bytes(inputs, **options) > 0) == takes_memory


@pytest.mark.parametrize("config", PACKING, ids=str)
def test_clusters_that_do_not_run_at_a_time_are_splits_of_persistent_ctas(config):
    most_tiles = most_ctas(config) // 3
    for n_tiles, takes_memory in ((most_tiles, False), (most_tiles + 1, True)):
        inputs, expected = on_gpu(
            Shape("few", n_tiles, 2, 517, 4, heads_kv=1), config.d_head, CAUSAL
        )
        options = {"config": config, "num_splits": 3, **CAUSAL.options}
        check(expected, attend(inputs, **options), config, n_tiles)
        assert (temporary_bytes(inputs, **options) > 0) == takes_memory


@pytest.mark.parametrize("config", PACKING, ids=str)
@pytest.mark.parametrize("num_splits", [1, 4, 16, 20])
def test_sinks_join_splits_once(config, num_splits):
    shape = Shape("few", 2, 3, 519, 12, heads_kv=3)
    q, k, v = make_inputs(shape, DTYPE, config.d_head, "cuda")
    sinks = torch.randn(shape.heads, device="cuda") + 3
    options = {"causal": True, "sinks": sinks}
    expected = expect(q, k, v, **options)
    results = attend((q, k, v), config=config, num_splits=num_splits, **options)
    check(expected, results, shape, num_splits)
