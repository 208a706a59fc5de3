"""What a call is expected to cost."""

from __future__ import annotations

import dataclasses

import pytest

from pyflash.distributed import MACHINES, plan
from pyflash.distributed.model import METHODS, machine_of, ring_steps

PROBLEM = {"seqlen": 1 << 18, "heads": 16, "n_ranks": 4}
H200 = machine_of("NVIDIA H200")
SLOW_LINK = dataclasses.replace(H200, link=H200.link / 20)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2, 8])
def test_efficiency(n_ranks, causal, backward):
    options = PROBLEM | {"heads": 64, "n_ranks": n_ranks, "causal": causal, "backward": backward}
    expected = plan(**options)
    assert expected.method in METHODS
    if not backward:
        assert expected.seconds == min(expected.seconds_by_method.values())
    assert 0.5 < expected.efficiency <= 1
    slower = plan(**options, machine=SLOW_LINK)
    assert slower.seconds >= expected.seconds
    longer = plan(**(options | {"seqlen": 1 << 20}))
    assert longer.efficiency >= expected.efficiency


def test_sending_is_hidden_from_some_length_on():
    for machine in (H200, SLOW_LINK):
        length = plan(**PROBLEM, machine=machine).hidden_from
        for seqlen, hidden in ((length, True), (length // 2, False)):
            steps = ring_steps(plan(**(PROBLEM | {"seqlen": seqlen})).problem, machine)
            assert all(step.send <= step.compute for step in steps) == hidden
    assert plan(**PROBLEM, machine=SLOW_LINK).hidden_from > plan(**PROBLEM).hidden_from


def test_windows_may_never_hide_it():
    options = PROBLEM | {"causal": True, "window_left": 100, "layout": "contiguous"}
    expected = plan(**options, machine=SLOW_LINK)
    assert expected.hidden_from is None
    assert "hidden at no length" in str(expected)
    assert len(ring_steps(expected.problem, SLOW_LINK)) == 2


def test_causal_needs_a_zigzag():
    balanced, skewed = (
        plan(**PROBLEM, causal=True, layout=layout).seconds_by_method["ring"]
        for layout in ("zigzag", "contiguous")
    )
    assert skewed > 1.5 * balanced


def test_the_rule():
    assert plan(**(PROBLEM | {"heads": 6})).method == "ring"
    assert "6 heads: expected a multiple of the 4 ranks" in plan(**(PROBLEM | {"heads": 6})).reason
    few_rows = plan(seqlen=1 << 14, heads=16, n_ranks=16)
    assert few_rows.method == "all_to_all"  # the latency of 16 steps
    slow = plan(seqlen=1 << 20, heads=16, n_ranks=8, machine=SLOW_LINK)
    assert slow.method == "ring"  # hidden there, and not for all-to-all
    assert plan(seqlen=1 << 20, heads=16, n_ranks=16, machine=SLOW_LINK).method == "ring"


def test_the_plan_reads_well():
    text = str(plan(**PROBLEM, heads_kv=4, causal=True, backward=True))
    assert "4 x H200, 317 GB/s: batch 1, 262144 rows, 16 heads (4 of k and v), d_head 128" in text
    assert "efficiency 0.9" in text
    assert "sending is hidden in every step" in text


def test_machines():
    assert machine_of("cpu").name == "CPU"
    assert machine_of("NVIDIA A100-SXM4-80GB").name == "A100"
    assert machine_of("NVIDIA GeForce RTX 3090").name == "H100"
    assert len({machine.name for machine in MACHINES}) == len(MACHINES)
