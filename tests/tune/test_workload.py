"""In which order contenders are timed."""

import pytest

from pyflash.tuner import workload as timing
from pyflash.tuner.problems import parse_problem
from pyflash.tuner.workload import Contender, Workload

SECONDS = {"a": 4e-5, "b": 1e-5, "c": 1.2e-5, "d": 2e-5}
N_SAMPLES = 5


@pytest.fixture
def order(monkeypatch):
    """The contenders' names as they are timed; a call takes what SECONDS says."""
    names: list[str] = []

    def calls(self, contender):
        def run(n):
            names.append(contender.config)

        return run, 10

    def seconds(run, device, n):
        run(n)
        return 10 * SECONDS[names[-1]]

    monkeypatch.setattr(Workload, "_calls", calls)
    monkeypatch.setattr(timing, "seconds_per_call", seconds)
    return names


def sample(names: str) -> list[list[float]]:
    workload = Workload(parse_problem("bf16,heads=1,seqlen=8,d_head=64", "cpu"))
    return workload.sample([Contender(name) for name in names], N_SAMPLES)


def test_contenders_that_take_about_as_long_take_turns_without_slower_ones(order):
    samples = sample("abcd")
    assert samples == [pytest.approx([SECONDS[name]] * N_SAMPLES) for name in "abcd"]
    warm_up, far, near = order[:4], order[4:14], order[14:]
    assert sorted(warm_up) == list("abcd")
    assert far == list("ad da ad da ad".replace(" ", ""))
    # The near ones warm up, too, and each turn starts with another one.
    assert near == list("bc" + "bc cb bc cb bc".replace(" ", ""))


@pytest.mark.parametrize("names", ["b", "bc"])
def test_where_all_take_about_as_long_they_warm_up_once(order, names):
    samples = sample(names)
    assert samples == [pytest.approx([SECONDS[name]] * N_SAMPLES) for name in names]
    assert len(order) == (1 + N_SAMPLES) * len(names)
