"""Random variants: all of `python -m support.random_attention`, of which a part runs here."""

from __future__ import annotations

import pytest
from support.random_attention import check_gradients, check_values


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_values_and_gradients_are_those_of_float64(first):
    """Gradients are compared where they are finite."""
    compared = 0
    for seed in range(first, first + 10):
        check_values(seed)
        compared += check_gradients(seed)
    assert compared >= 5
