"""Each planted bug is found, at the site where it is, and nothing is found without it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from pyflash.emulator import ORDERS
from pyflash.emulator.run import run_library
from pyflash.reference import expect
from tests.planted import BUGS, CONFIGS, Bug, planted_libraries, switched_on
from tests.problems import Shape, make_inputs

__all__ = ["planted_libraries"]

# Three blocks of Q and four of K, the last of each ragged; one head, so that what lies past the end
# of its rows belongs to nobody.
INPUTS = make_inputs(Shape("ragged", 1, 141, 109, 1), torch.float16, 64)
# Bugs that the outputs do not show.
SILENT = {
    "K_loaded_past_the_first_block",
    "store_of_one_row_too_many",
    "lse_of_one_row_too_many",
    "lse_written_by_every_lane_of_a_quad",
}


def run(library, config, order):
    return run_library(library, *INPUTS, CONFIGS[config], order=order, seed=1)


def is_right(out, lse) -> bool:
    try:
        expect(*INPUTS).check(out, lse)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_found_while_no_bug_is_on(planted_libraries, config, order):
    out, lse, report = run(planted_libraries[config], config, order)
    report.check()
    assert report.completed
    assert is_right(out, lse)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted_libraries, bug: Bug):
    library = planted_libraries[bug.config]
    for order in ORDERS:
        with switched_on(bug, library):
            out, lse, report = run(library, bug.config, order)
        for expected in bug.found:
            assert expected.is_in(report.findings), f"{expected}:\n" + "\n".join(
                map(str, report.findings)
            )
        if bug.conflicts_at:
            assert report.sites[bug.conflicts_at]["shared_load"].max_degree == 8
        assert is_right(out, lse) == (bug.name in SILENT)
    assert bug.found or bug.conflicts_at
