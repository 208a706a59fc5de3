"""Random variants: all of `python -m support.emulated_programs`, of which a part runs here."""

from __future__ import annotations

import pytest

pytest.importorskip("ninja", reason="building needs ninja")

from support.emulated_programs import TOGETHER, check


@pytest.mark.parametrize("first", range(0, 4 * TOGETHER, TOGETHER))
def test_they_are_those_of_float64(first):
    check(first)
