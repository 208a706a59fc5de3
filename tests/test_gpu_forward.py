"""Every built config on a GPU: right at every shape, every element written, the same bits again."""

import pytest
import torch
from problems import SHAPES, Shape, new_memory_is_nan, problem_of

from pyflash import attention, built_configs
from pyflash.reference import expect

pytestmark = pytest.mark.gpu

CONFIGS = list(built_configs())
# Several blocks of every size on both sides, the last ones ragged; enough CTAs for a busy GPU.
BUSY = Shape("busy", 3, 577, 1031, 24)


def run(config, inputs):
    """(out, lse) of the config, in memory that held NaN."""
    with new_memory_is_nan("cuda"):
        try:
            return attention(*inputs, config=config, return_lse=True)
        except RuntimeError as refusal:
            if "is not built for this GPU" not in str(refusal):
                raise
            pytest.skip(str(refusal))


@pytest.mark.parametrize("shape", [*SHAPES, BUSY], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_config_is_within_tolerance_at_every_shape(config, shape):
    inputs, expected = problem_of(shape, config, "cuda")
    out, lse = run(config, inputs)
    expected.check(out, lse)
    assert out.is_contiguous()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_same_bits_ten_times(config):
    inputs, _ = problem_of(BUSY, config, "cuda")
    first = run(config, inputs)
    for _ in range(9):
        for a, b in zip(first, run(config, inputs), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_more_batches_times_heads_than_65535(config):
    shape = Shape("many_heads", 32769, 3, 5, 2)
    inputs, expected = problem_of(shape, config, "cuda")
    expected.check(*run(config, inputs))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_large_and_small_scores(config):
    """Rows with one dominant key, and rows without any."""
    (q, k, v), _ = problem_of(BUSY, config, "cuda")
    for factor in (30.0, 1e-3):
        expect(q * factor, k, v).check(*run(config, (q * factor, k, v)))


def test_configs_of_both_dtypes_are_built():
    """What is built is what is tested: an empty config map would make this file pass."""
    assert {config.dtype.name for config in CONFIGS} == {"FP16", "BF16"}
    assert {config.d_head for config in CONFIGS} == {64, 128}
