"""Random variants: all of `python -m support.emulated_programs`, of which a part runs here."""

from __future__ import annotations

import pytest

pytest.importorskip("ninja", reason="building needs ninja")

from support.emulated_programs import check, groups


@pytest.mark.parametrize("seeds", [*groups(range(40))], ids=lambda seeds: f"from {seeds[0]}")
def test_they_are_those_of_float64(seeds):
    check(seeds)
