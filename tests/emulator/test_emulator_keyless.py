"""Rows, tiles and sequences without keys under every combination of features, on the emulator."""

from __future__ import annotations

import pytest

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support import emulated, emulated_sm90, keyless

from pyflash.codegen.emulated import build_emulated
from pyflash.op.selection import TORCH_DTYPES

# Each head dimension of both families, and each kind of softmax of the SM90 family.
CONFIGS = [emulated.BEST, emulated.CONFIGS[9], emulated.CONFIGS[14], *emulated_sm90.CONFIGS]


@pytest.fixture(scope="module")
def libraries():
    return build_emulated(CONFIGS)


@pytest.mark.parametrize("B_r", [64, 128, 192, 256])
def test_each_combination_of_features_meets_rows_without_keys(B_r):
    """Without a right window every row of the first shape attends a key."""
    tiles, sequences, no_keys = ([*keyless.cases(shape)] for shape in keyless.shapes(B_r))
    assert len(sequences) == len(no_keys) == len(keyless.FEATURES) == 64
    assert {case.mask.name for case in tiles} == {"right", "right_left"}
    assert len(tiles) == 32


@pytest.mark.parametrize("i", range(len(keyless.shapes(64))))
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_combination_of_features(libraries, config, i):
    """Pitfall 28: combinations of features and rows without keys."""
    for case in keyless.cases(keyless.shapes(config.B_r)[i]):
        inputs = case.inputs(TORCH_DTYPES[config.dtype], config.d_head)
        options = case.options() | {"num_splits": case.num_splits}
        if case.has_no_keys and case.sinks and config in emulated_sm90.CONFIGS:
            with pytest.raises(ValueError, match="it has sinks and no keys"):
                emulated.emulate(libraries, config, inputs, **options)
            continue
        out, lse, report = emulated.emulate(libraries, config, inputs, **options)
        report.check()
        keyless.check(case, case.expected(inputs), out, lse)
