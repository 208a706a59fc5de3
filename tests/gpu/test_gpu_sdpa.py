"""The tests of test_sdpa.py that compute something, on a GPU."""

import pytest
from test_sdpa import (  # noqa: F401
    test_compiles_with_gradients,
    test_compiles_without_a_graph_break,
    test_copies_nothing,
    test_gives_what_pytorch_gives,
    test_gradients,
    test_in_the_place_of_pytorchs_function,
)

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    return "cuda"
