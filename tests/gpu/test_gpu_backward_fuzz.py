"""Gradients of random problems on a GPU, by each backward family; `backward_fuzz` says what is
drawn, and how to run one again. PYFLASH_BACKWARD_FUZZ_CASES: how many of each family."""

import os

import pytest
from support import backward_fuzz

from pyflash import built_configs
from pyflash.config import family_of

pytestmark = pytest.mark.gpu

CASES = int(os.environ.get("PYFLASH_BACKWARD_FUZZ_CASES", "5000"))
BATCH = -(-CASES // 20)
FIRST_SEEDS = {"sm90_backward": 0, "sm80_backward": 1_000_000}


@pytest.mark.parametrize("first", range(0, CASES, BATCH))
@pytest.mark.parametrize("family", FIRST_SEEDS)
def test_random_problems(family, first):
    """Each with one of the configs of the family.
    Pitfall 12: lengths that are no multiple of the tile.
    Pitfall 13: strides ignored.
    Pitfall 16: causal where the lengths differ."""
    if not any(family_of(config).name == family for config in built_configs("backward")):
        pytest.skip(f"no config of {family} is built")
    seeds = range(first, min(first + BATCH, CASES))
    found = backward_fuzz.failures((FIRST_SEEDS[family] + seed for seed in seeds), "cuda", family)
    n_wrong = f"{len(found)} of {len(seeds)} cases are wrong"
    assert not found, "\n\n".join([n_wrong, *found])
