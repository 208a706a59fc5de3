"""Rows, tiles and sequences without keys under every combination of features, on a GPU."""

import pytest
import torch
from support import keyless
from support.gpu_calls import CONFIGS, attend, attend_packed

from pyflash.op.selection import TORCH_DTYPES

pytestmark = pytest.mark.gpu

# More rows than any tile has.
ROWS = 256


def run(case, dtype, d_head, config):
    inputs = case.inputs(dtype, d_head, "cuda")
    call = attend_packed if case.is_packed else attend
    options = case.options("cuda") | {"num_splits": case.num_splits, "config": config}
    keyless.check(case, case.expected(inputs), *call(inputs, **options))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_config_under_every_combination_of_features(config):
    """Pitfall 28: combinations of features and rows without keys."""
    for shape in keyless.shapes(config.B_r):
        for case in keyless.cases(shape):
            run(case, TORCH_DTYPES[config.dtype], config.d_head, config)


@pytest.mark.parametrize("d_head", range(16, 257, 8))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_head_dimension_under_every_combination_of_features(dtype, d_head):
    """Pitfall 28: combinations of features and rows without keys.
    With the config that is selected."""
    if d_head > max(config.d_head for config in CONFIGS):
        pytest.skip(f"no config for d_head {d_head} is built")
    for shape in keyless.shapes(ROWS):
        for case in keyless.cases(shape):
            run(case, dtype, d_head, "")
