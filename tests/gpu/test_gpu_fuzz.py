"""Random problems on a GPU; `fuzz` says what is drawn, and how to run one again."""

import pytest
from support import fuzz

from pyflash import built_configs
from pyflash.config import family_of

pytestmark = pytest.mark.gpu

CASES = 2000
BATCH = 100
BATCHES = range(0, CASES, BATCH)


@pytest.mark.parametrize("first", BATCHES)
def test_random_problems(first):
    """2,000, of all configs and with the best known.
    Pitfall 12: lengths that are no multiple of the tile.
    Pitfall 13: strides ignored.
    Pitfall 16: causal where the lengths differ."""
    check(range(first, first + BATCH), None)


@pytest.mark.parametrize("first", BATCHES)
def test_random_problems_of_the_sm90_family(first):
    """2,000 more, each with one of its configs."""
    if not any(family_of(config).name == "sm90_forward" for config in built_configs()):
        pytest.skip("no SM90 config is built")
    check(range(CASES + first, CASES + first + BATCH), "sm90_forward")


def check(seeds, family):
    found = fuzz.failures(seeds, "cuda", family)
    assert not found, f"{len(found)} of {BATCH} cases are wrong\n\n" + "\n\n".join(found)
