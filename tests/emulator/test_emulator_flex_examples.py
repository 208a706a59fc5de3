"""FlexAttention's documented examples and attention-gym's functions in emulated kernels, ten to a
kernel, beside their formulas in float64."""

from __future__ import annotations

import pytest

pytest.importorskip("ninja", reason="building needs ninja")

import torch
from support.flex_examples import EXAMPLES, expected, groups, inputs, of_group
from support.planted.variants import CONFIGS

import pyflash


@pytest.mark.parametrize(
    ("family", "names"),
    [*(("sm90", names) for names in groups()), ("sm80", groups()[0])],
    ids=lambda x: x if isinstance(x, str) else x[0],
)
def test_they_are_their_formulas(family, names):
    given = inputs()
    rows_first = [x.transpose(1, 2).contiguous() for x in given]
    variant, values = of_group(names)
    for which, name in enumerate(names):
        out, lse, report = pyflash.emulate(
            *rows_first, CONFIGS[family], variant=variant, tensors=values | {"which": which}
        )
        report.check()
        of_pairs, of_rows = expected(EXAMPLES[name], *given)
        torch.testing.assert_close(lse.double(), of_rows, rtol=1e-4, atol=1e-3, msg=name.__add__)
        torch.testing.assert_close(
            out.transpose(1, 2).double(), of_pairs, rtol=4e-3, atol=4e-3, msg=name.__add__
        )
