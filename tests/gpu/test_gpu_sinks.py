"""The tests of test_sinks.py, on a GPU."""

import pytest
from test_sinks import (  # noqa: F401
    test_a_row_with_nothing_to_attend_is_zero_with_the_sink_as_lse,
    test_autocast_leaves_float32_sinks,
    test_compiles_without_a_graph_break,
    test_extreme_sinks,
    test_gradients,
    test_gradients_of_packed_sequences,
    test_gradients_of_sinks_alone_and_of_all_but_sinks,
    test_gradients_of_sinks_have_the_same_bits_every_time,
    test_opcheck,
    test_opcheck_of_the_gradient,
    test_second_derivatives_of_sinks_are_refused,
    test_select_with_sinks,
    test_sinks_are_within_tolerance,
    test_sinks_of_packed_sequences,
    test_vmap_over_sinks_is_refused,
)

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    return "cuda"
