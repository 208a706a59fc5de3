"""2,000 random problems on a GPU; `fuzz` says what is drawn, and how to run one again."""

import pytest
from support import fuzz

pytestmark = pytest.mark.gpu

CASES = 2000
BATCH = 100


@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_random_problems(first):
    """Pitfall 12: lengths that are no multiple of the tile.
    Pitfall 13: strides ignored.
    Pitfall 16: causal where the lengths differ."""
    found = fuzz.failures(range(first, first + BATCH), "cuda")
    assert not found, f"{len(found)} of {BATCH} cases are wrong\n\n" + "\n\n".join(found)
