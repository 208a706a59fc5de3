"""Random variants: all of `python -m support.random_attention`, of which a part runs here."""

from __future__ import annotations

import pytest
from support.combined_variants import combined
from support.random_attention import check_gradients, check_values, values_of, variant_of


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_values_and_gradients_are_those_of_float64(first):
    """Gradients are compared where they are finite."""
    compared = 0
    for seed in range(first, first + 10):
        check_values(seed)
        compared += check_gradients(seed)
    assert compared >= 5


def test_what_is_not_selected_has_no_gradient():
    """Beside 59, whose slope is infinite or NaN at scores that are not above 0."""
    programs = [variant_of(seed) for seed in range(54, 60)]
    beside = {name: x for program in programs for name, x in values_of(program).items()}
    for which, seed in enumerate(range(54, 59)):
        assert check_gradients(seed, "cpu", combined(programs), beside | {"which": which})
