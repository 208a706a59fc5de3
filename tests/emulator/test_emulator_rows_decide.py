"""rows_decide: the bits of a row do not depend on the rows beside it in its warp, whatever their
scores do to their maxima."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.planted.planting import build_planted, switched_on
from support.planted.rows import BUGS, ROUNDING

from pyflash.config import parse
from pyflash.config.features import EMULATED
from pyflash.emulator import ORDERS
from pyflash.emulator.run import run_library
from pyflash.op.reference import expect
from pyflash.op.selection import TORCH_DTYPES

CONFIGS = [
    parse(f"({dtype}, 64, 128, 32, 2): sm90+{words}+rescale_threshold+rows_decide").canonical()
    for dtype, words in (("FP16", "stages_2+overlap+pingpong+persistent"), ("BF16", "stages_2"))
]
N_QUERIES = 150
# By their first column, with which keys' steps of STEPS count.
KINDS = {
    "calm": 0.0,
    "grows": 4.0,  # exponents of 2 exceed m by less than the threshold of fp16
    "large": 40.0,  # by more, and sums are finite
    "leaps": 250.0,  # sums overflow
    "falls": -60.0,
    "leaps from below": -250.0,
    "NaN": float("nan"),
}
# The first column of the keys of a block, from the last block on, as they are worked through.
STEPS = torch.tensor([0.0, 0.0, -4.0, 8.0, 8.5, -8.0, 14.0, 14.0, 0.0, 15.0, 15.5])
PLANTED = [*BUGS, ROUNDING]
MASKS = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window_left": 70, "window_right": 40},
    "fewer keys": {"causal": True},  # so that some rows have none
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """With every bug in them, none of which is on."""
    root = tmp_path_factory.mktemp("planted_rows")
    masked = [features for features in EMULATED if not features.softcap]
    configs = {str(config): config for config in CONFIGS}
    return build_planted(PLANTED, configs, root, features=masked)


def attend(libraries, config, mask, kinds, order=ORDERS[0]):
    """kinds: of rows, in turns."""
    n_keys = 130 if mask == "fewer keys" else 330
    torch.manual_seed(n_keys)
    shapes = ((1, N_QUERIES, 1, 64), (1, n_keys, 1, 64), (1, n_keys, 1, 64))
    q, k, v = (torch.randn(shape) for shape in shapes)
    turns = torch.tensor([KINDS[kind] for kind in kinds])
    q[..., 0] = turns[torch.arange(N_QUERIES) % len(kinds)][None, :, None]
    blocks = torch.arange(n_keys) // config.B_c
    k[..., 0] = STEPS[blocks[-1] - blocks][None, :, None]
    inputs = [x.to(TORCH_DTYPES[config.dtype]) for x in (q, k, v)]
    out, lse, report = run_library(
        libraries[str(config)], inputs, config, order=order, resident_ctas=1, **MASKS[mask]
    )
    return out, lse, report, inputs


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def differing(libraries, config, mask, order=ORDERS[0]) -> list[str]:
    """The kinds of rows whose bits are others beside rows of all kinds than beside their own."""
    kinds, found = list(KINDS), []
    among = [attend(libraries, config, mask, kinds[n:] + kinds[:n], order) for n in (0, 3)]
    for kind in kinds:
        out, lse, report, _ = attend(libraries, config, mask, [kind])
        report.check()
        for turn, (out_among, lse_among, report_among, _) in zip((0, 3), among, strict=True):
            report_among.check()
            rows = slice((kinds.index(kind) - turn) % len(kinds), None, len(kinds))
            same = torch.equal(bits(out[:, rows]), bits(out_among[:, rows]))
            same &= torch.equal(bits(lse[..., rows]), bits(lse_among[..., rows]))
            if not same and kind not in found:
                found.append(kind)
    return found


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_bits_do_not_depend_on_the_rows_beside(libraries, config, mask):
    order = ORDERS[list(MASKS).index(mask) % len(ORDERS)]
    assert differing(libraries, config, mask, order) == []
    with switched_on(PLANTED, ROUNDING, libraries[str(config)]):
        assert differing(libraries, config, mask, order) == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "NaN"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_they_are_right(libraries, config, mask, kind):
    out, lse, report, inputs = attend(libraries, config, mask, [kind])
    report.check()
    expect(*inputs, **MASKS[mask]).check(out, lse)
    if mask == "none":
        assert ("QK_g2r" in report.sites) == kind.startswith("leaps")


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(libraries, bug):
    config = CONFIGS[0]
    with switched_on(PLANTED, bug, libraries[str(config)]):
        assert any(differing(libraries, config, mask) for mask in MASKS)
