"""What a notebook shows of a config: its resources beside the limits of each architecture."""

from __future__ import annotations

import html
import json

import pytest
from support.command_lines import config_of
from support.pages import check_page

from pyflash.config import ARCHS, FAMILIES
from pyflash.inspect.sheet import Sheet
from pyflash.ui.page import page


@pytest.mark.parametrize("arch", ARCHS, ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_notebook_shows_resources_against_limits(family, arch):
    config = config_of(family)
    shown = html.unescape(config._repr_html_())
    assert str(config) in shown
    sheet = Sheet.of(config, [arch])
    check_page(page(sheet))
    cells = dict(sheet.tables()[1].rows)
    found = sheet.on[arch.name].resources
    if found is None:
        assert cells.pop("legal") == "no"
        assert set(cells.values()) == {""}
        assert all(v.sentence in shown for v in config.violations(arch))
        return
    expected = {
        "registers": f"{found.registers} of {arch.max_registers_per_thread}",
        "smem_bytes": f"{found.smem_bytes:,} of {arch.smem_per_cta:,}",
        "num_ctas_per_sm": f"{found.num_ctas_per_sm} of {arch.max_ctas_per_sm}",
        "n_threads": f"{found.n_threads} of {arch.max_threads_per_cta:,}",
    }
    assert {name: cells[name] for name in expected} == expected
    assert all(f">{cell}<" in shown for cell in expected.values())
    told = json.loads(sheet.to_json())["archs"][arch.name]["resources"]
    assert told["registers"] == found.registers
