"""What inspect shows of an SM90 config: as much as of an SM80 one, or why not."""

from __future__ import annotations

import pytest
from support.inspections import SM90_SMEM, looked_into, looked_into_sm90
from support.listings import BEST
from support.pages import check_page

from pyflash.config import ARCHS
from pyflash.ui.page import page


@pytest.fixture(scope="module")
def sm80_tables():
    return {table.title: table for table in looked_into(BEST).tables()}


@pytest.fixture(scope="module")
def tables():
    return {table.title: table for table in looked_into_sm90().tables()}


def section(text: str, name: str) -> str:
    return text.partition(f"<h2>{name}</h2>")[2].partition("</section>")[0]


def test_a_tile_of_several_stages_or_warpgroups_names_them(tables):
    rows = {row[0]: row[1:] for row in tables["layouts"].rows}
    assert rows["Q"] == ("64 x 128, 2 warpgroups", "1", SM90_SMEM["Q"][0])
    assert rows["K"] == rows["V"] == ("128 x 128, 2 stages", "1", SM90_SMEM["K"][0])
    assert rows["V^T"] == ("128 x 128, 2 stages", "", SM90_SMEM["V^T"][0])
    assert rows["O"] == ("16 x 64", "", SM90_SMEM["O"][0])


def test_who_reads_shared_memory_is_told(tables, sm80_tables):
    assert tables["layouts"].columns[2] == "WGMMA conflicts"
    assert sm80_tables["layouts"].columns[2] == "ldmatrix conflicts"
    assert "what TMA writes and WGMMA reads" in tables["shared memory traffic, emulated"].note
    assert "a box" in tables["global memory traffic, emulated"].note


def test_shared_memory_is_told_to_its_last_byte(tables, sm80_tables):
    assert tables["shared memory"].rows[-1] == ("mbarriers, padding", "163,840", "1,024")
    assert [row[0] for row in sm80_tables["shared memory"].rows] == ["q", "k", "v"]


def test_no_cta_runs_where_the_config_is_not_legal(tables):
    (kernel,) = looked_into_sm90().kernels
    assert kernel.ctas_per_sm == {str(arch): int(arch.sm == 90) for arch in ARCHS}
    rows = tables["CTAs per SM"].rows
    assert ("sm_80", "not legal", "0") in rows
    assert ("sm_90", "1", "1") in rows


def test_its_page_has_what_that_of_sm80_has():
    headings = check_page(page(looked_into_sm90()))
    assert set(check_page(page(looked_into(BEST)))) <= set(headings)


def test_its_page_says_what_is_drawn():
    text = page(looked_into_sm90())
    K = section(text, "K in shared memory")
    assert "The first of 2 stages." in K
    assert "WGMMA reads K here" in K
    assert "thread 31, value 63" in section(text, "threads of S")
    assert "WGMMA" not in section(page(looked_into(BEST)), "K in shared memory")
