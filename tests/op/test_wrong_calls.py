"""Random wrong calls of the public API: each works and is right, or raises a ValueError, TypeError
or RuntimeError of one short sentence. A seed that fails: `python -m support.wrong_calls SEED`."""

import pytest
from support.wrong_calls import REFUSALS, call_of, complaint_of

CHUNK = 1000


@pytest.mark.parametrize("first", range(0, 6 * CHUNK, CHUNK))
def test_wrong_calls_are_refused_in_a_sentence(first):
    complaints = {seed: complaint_of(call_of(seed)) for seed in range(first, first + CHUNK)}
    assert {seed: text for seed, text in complaints.items() if text} == {}


def test_calls_are_right_and_wrong():
    """Neither of which the test above would notice."""
    results = {}
    for seed in range(300):
        call = call_of(seed)
        try:
            call.function(**call.arguments)
        except REFUSALS as error:
            results.setdefault(type(error), []).append(seed)
        else:
            results.setdefault("right", []).append(seed)
    assert len(results["right"]) > 15
    assert len(results[ValueError]) > 50
    assert len(results[TypeError]) > 20
