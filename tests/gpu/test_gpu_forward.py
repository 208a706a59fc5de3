"""Every built config on a GPU: right for every shape and mask, every element written, the same bits
again."""

import pytest
import torch
from support.gpu_calls import CONFIGS, attend, attend_packed, check
from support.memory_layout import Layout
from support.problems import (
    GQA,
    MASKS,
    NO_MASK,
    PACKED,
    SHAPES,
    Mask,
    Shape,
    far_below_a_cap,
    growing,
    growing_below_zero,
    leaping,
    make_inputs,
    near_a_cap,
    packed_and_expected,
    problem_of,
    rising,
)

from pyflash import built_configs
from pyflash.op.reference import expect
from pyflash.op.selection import TORCH_DTYPES

pytestmark = pytest.mark.gpu

# Several blocks of every size on both sides, the last ones ragged; enough CTAs for a busy GPU.
BUSY = Shape("busy", 3, 577, 1031, 24)
CAUSAL = Mask("causal", causal=True)
WINDOW = Mask("window", window_left=100, window_right=30)
# More keys than rows, and fewer, where the first rows have none; of one block and of several.
MASKED_SHAPES = [
    Shape("as_many_keys", 2, 131, 131, 2),
    Shape("more_keys", 1, 67, 401, 4, heads_kv=2),
    Shape("fewer_keys", 2, 401, 67, 2),
    Shape("aligned", 1, 512, 640, 2),
    Shape("one_query", 1, 1, 257, 2),
    Shape("gqa_nan_around", 2, 257, 300, 6, "nan_around", heads_kv=2),
]

every_config = pytest.mark.parametrize("config", CONFIGS, ids=str)


@pytest.mark.parametrize("shape", [*SHAPES, *GQA, BUSY], ids=str)
@every_config
def test_every_config_is_within_tolerance_at_every_shape(config, shape):
    """Pitfall 12: lengths that are no multiple of the tile.
    Pitfall 13: strides ignored."""
    inputs, expected = problem_of(shape, config, "cuda")
    out, lse = attend(inputs, config=config)
    expected.check(out, lse)
    assert out.is_contiguous()


@pytest.mark.parametrize("grow", [growing, growing_below_zero, rising, leaping])
@pytest.mark.parametrize("causal", [False, True])
@every_config
def test_maxima_that_grow(config, causal, grow):
    """A threshold that is passed again and again."""
    shape = Shape("", 2, 300, 700, 4)
    inputs = grow(make_inputs(shape, TORCH_DTYPES[config.dtype], config.d_head, "cuda"))
    check(expect(*inputs, causal=causal), attend(inputs, config=config, causal=causal), shape)


@every_config
def test_keys_of_minus_infinity_count_nothing(config):
    """Blocks whose scores are -inf by value, not by a mask."""
    shape = Shape("", 2, 300, 700, 4)
    inputs = make_inputs(shape, TORCH_DTYPES[config.dtype], config.d_head, "cuda")
    q, k, v = (x.abs() + 0.1 for x in inputs)
    for infinite in (slice(256), slice(444, 700)):
        finite = torch.ones(700, dtype=torch.bool)
        finite[infinite] = False
        k_infinite = k.clone()
        k_infinite[:, infinite] = -torch.inf
        expected = expect(q, k[:, finite], v[:, finite])
        check(expected, attend((q, k_infinite, v), config=config), infinite)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@every_config
def test_every_config_under_every_mask(config, mask):
    """Pitfall 10: rows with nothing to attend give NaN.
    Pitfall 16: causal where the lengths differ."""
    for shape in MASKED_SHAPES:
        inputs, expected = problem_of(shape, config, "cuda", mask)
        check(expected, attend(inputs, config=config, **mask.options), shape)


@every_config
def test_busy_masks(config):
    for mask in (CAUSAL, WINDOW):
        inputs, expected = problem_of(BUSY, config, "cuda", mask)
        check(expected, attend(inputs, config=config, **mask.options), mask)


@pytest.mark.parametrize("causal", [False, True])
@every_config
def test_scores_from_far_below_a_cap_to_far_above(config, causal):
    """The series, tanh, and rows whose largest score is among the lowest; twice the same bits."""
    shape = Shape("", 2, 300, 517, 4, heads_kv=4)
    inputs = near_a_cap(make_inputs(shape, TORCH_DTYPES[config.dtype], config.d_head, "cuda"))
    options = {"softcap": 30.0, "causal": causal}
    first, again = (attend(inputs, config=config, **options) for _ in range(2))
    check(expect(*inputs, **options), first, config)
    assert all(map(torch.equal, first, again))


@every_config
def test_scores_far_below_a_cap_under_small_ones(config):
    """Where only the magnitude tells that the series does not do."""
    shape = Shape("", 2, 300, 517, 4, heads_kv=4)
    inputs = make_inputs(shape, TORCH_DTYPES[config.dtype], config.d_head, "cuda")
    inputs = far_below_a_cap(inputs)
    check(expect(*inputs, softcap=30.0), attend(inputs, config=config, softcap=30.0), config)


@pytest.mark.parametrize(
    ("config", "d_head"),
    [
        pytest.param(config, d_head, id=f"{config}-{d_head}")
        for config in CONFIGS
        for d_head in (8, 16, 40, 56, 80, 96, 104, 120, 136, 200, 248)
        if d_head < config.d_head
    ],
)
def test_narrower_heads_in_the_same_kernel(config, d_head):
    """Pitfall 15: head dimensions that are not built. What lies beside the columns is NaN."""
    beside = Layout((0, 1, 2, 3), (0, 130, 1, 8), (0, 130, 1, 16), (1, 1, 1, 1))
    shape = Shape("narrow", 2, 131, 197, 4, heads_kv=2)
    dtype = TORCH_DTYPES[config.dtype]
    inputs = [beside.place(x) for x in make_inputs(shape, dtype, d_head, "cuda")]
    # A narrower head under WINDOW runs in the kernel of every feature, here without a softcap.
    for mask in (NO_MASK, CAUSAL, WINDOW):
        expected = expect(*inputs, **mask.options)
        check(expected, attend(inputs, config=config, **mask.options), mask)


@pytest.mark.parametrize("mask", [NO_MASK, CAUSAL, WINDOW], ids=str)
@every_config
def test_packed_sequences(config, mask):
    """Pitfall 11: empty inputs. Some of these sequences have no rows, or no keys."""
    for packed in PACKED:
        arguments, expected = packed_and_expected(
            packed, TORCH_DTYPES[config.dtype], config.d_head, "cuda", mask
        )
        results = attend_packed(arguments, config=config, **mask.options)
        check(expected, results, packed)


@pytest.mark.parametrize("num_splits", [2, 3, 7, 100])
@every_config
def test_splits_of_the_keys(config, num_splits):
    """More splits than blocks; splits whose every block is masked; rows with nothing to attend."""
    shapes = [
        Shape("split", 2, 67, 517, 4, heads_kv=2),
        Shape("split_decode", 1, 1, 1031, 8, heads_kv=2),
        Shape("split_fewer_keys", 1, 300, 131, 2),
    ]
    for shape in shapes:
        for mask in (NO_MASK, CAUSAL, WINDOW):
            inputs, expected = problem_of(shape, config, "cuda", mask)
            results = attend(inputs, config=config, num_splits=num_splits, **mask.options)
            check(expected, results, shape, mask)


@every_config
def test_splits_of_packed_sequences(config):
    for packed in PACKED:
        arguments, expected = packed_and_expected(
            packed, TORCH_DTYPES[config.dtype], config.d_head, "cuda", CAUSAL
        )
        results = attend_packed(arguments, config=config, num_splits=3, causal=True)
        check(expected, results, packed)


@every_config
def test_the_same_bits_ten_times(config):
    """Pitfall 19: other bits from run to run."""
    inputs, _ = problem_of(BUSY, config, "cuda")
    for options in ({}, {"causal": True}, {"num_splits": 4}):
        first = attend(inputs, config=config, **options)
        for _ in range(9):
            for a, b in zip(first, attend(inputs, config=config, **options), strict=True):
                assert torch.equal(a, b), options


@every_config
def test_more_batches_times_heads_than_65535(config):
    """Pitfall 8: grids of more than 65535."""
    shape = Shape("many_heads", 32769, 3, 5, 2)
    for mask in (NO_MASK, CAUSAL):
        inputs, expected = problem_of(shape, config, "cuda", mask)
        for num_splits in (1, 2):
            results = attend(inputs, config=config, num_splits=num_splits, **mask.options)
            check(expected, results, mask, num_splits)


@every_config
def test_large_and_small_scores(config):
    """Rows with one dominant key, and rows without any."""
    (q, k, v), _ = problem_of(BUSY, config, "cuda")
    for factor in (30.0, 1e-3):
        inputs = (q * factor, k, v)
        for mask in (NO_MASK, CAUSAL):
            expected = expect(*inputs, **mask.options)
            check(expected, attend(inputs, config=config, **mask.options), factor, mask)


def test_configs_of_both_dtypes_are_built():
    """What is built is what is tested: an empty config map would make this file pass."""
    assert {config.dtype.name for config in CONFIGS} == {"FP16", "BF16"}
    assert {config.d_head for config in CONFIGS} >= {64, 128}


@every_config
def test_the_config_map_has_the_shared_memory_and_threads_of_the_model(config):
    row = built_configs()[config]
    assert row.smem_bytes == max(map(config.smem_bytes_with, row.features))
    assert row.n_threads == config.n_threads
