"""A config looked into, and its page in a browser."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from html import escape

import pytest
from support.bench_records import run_of_four
from support.inspections import looked_into, looked_into_sm90
from support.listings import BASE, BEST
from support.reports import comparison, difference
from typer.testing import CliRunner

from pyflash import Space, named_set
from pyflash.bench.ladder import climb
from pyflash.bench.report import BenchReport
from pyflash.cli import app
from pyflash.emulator import Report, SharedTraffic
from pyflash.inspect import inspection
from pyflash.inspect.inspection import conflict_degrees, inspect
from pyflash.inspect.sheet import Sheet, SpaceSheet
from pyflash.ui.html import STYLE
from pyflash.ui.page import fragment, page
from pyflash.ui.svg import FILLS, INK
from pyflash.ui.tables import Table


def test_what_needs_no_compiler():
    found = inspect(BEST, "sm_90", parts=())
    assert found.resources == dataclasses.asdict(BEST.resources("sm_90"))
    assert found.demand["peak"] == found.resources["register_demand"]
    assert max(found.phases.values()) == found.demand["peak"]
    assert list(found.phases) == ["Q K^T", "softmax", "P V"]
    assert found.ctas_per_sm["sm_90"] == BEST.num_ctas_per_sm("sm_90")
    assert (found.missing, found.kernels, found.layouts) == ({}, [], {})
    values = json.loads(found.to_json())
    assert values["config"] == str(BEST)
    assert values["fields"] == BEST.to_dict()


def test_a_notebook_shows_configs_and_spaces():
    shown = BEST._repr_html_()
    assert shown == fragment(Sheet.of(BEST))
    assert str(BEST.resources("sm_86").register_demand) in shown
    sm90 = named_set("sm90")[-1]
    assert sm90.family.name == "sm90_forward"
    assert escape(sm90.violations("sm_80")[0].sentence) in sm90._repr_html_()
    space = Space(dtype="FP16", d_head=128, B_r=64, B_c=64, n_warps=4)
    assert escape(repr(space)) in space._repr_html_()
    assert '<tr><th scope="row">B_c</th><td>64</td></tr>' in space._repr_html_()
    sheet = SpaceSheet.of(space, "sm_90")
    assert sheet._repr_html_() == fragment(sheet)
    for rule in sheet.refused:
        assert rule in sheet._repr_html_()


def test_a_config_that_is_not_legal_says_why():
    found = inspect(BEST.replace(B_r=128, B_c=128, n_warps=4), "sm_86")
    assert found.violations
    assert found.missing == dict.fromkeys(inspection.PARTS, "not legal on sm_86")


def test_what_this_machine_cannot_do_is_named(monkeypatch):
    def no_compiler(config):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(inspection, "describe", no_compiler)
    found = inspect(BEST, "sm_90", parts=("layouts",))
    assert found.missing == {"layouts": "no C++ compiler"}
    assert found.description is None
    with pytest.raises(ValueError, match=r"unknown parts \['sass'\]"):
        inspect(BEST, "sm_90", parts=("sass",))


def test_degrees_are_of_the_main_loop():
    fields = {f.name for f in dataclasses.fields(Report)}
    assert "sites" in fields
    traffic = SharedTraffic(200, 102400, 800, 100, 8.0, 8.0, 8.0)
    report = type("Report", (), {"sites": {"K_s2r": {"shared_load": traffic}}})()
    assert conflict_degrees(report) == {"ldmatrix": 8}


def test_the_tables_tell_it_all():
    found = looked_into(BEST)
    tables = {table.title: table for table in found.tables()}
    assert ("swizzled", "yes") in tables["config"].rows
    limit = str(found.resources["register_limit"])
    live = tables["live registers by phase"].rows
    assert live == tuple((phase, str(n), limit) for phase, n in found.phases.items())
    assert ("mma", "128", "128") in tables["instructions of the plain kernel"].rows
    assert tables["cycles of the main loop, at least"].rows[0] == ("shared memory", "1,304")
    assert ("K", "64 x 128", "1", found.layouts["K"].text) in tables["layouts"].rows
    plain = {table.title: table for table in looked_into(BASE).tables()}
    assert plain["layouts"].rows[1][2] == "8"


def test_cells():
    table = Table.of("t", ("", "a", "b"), [("x", 12345, True), ("y", 0.125, None)], "n")
    assert table.rows == (("x", "12,345", "yes"), ("y", "0.125", ""))
    assert (table.is_number(1), table.is_number(2)) == (True, False)


def test_a_page_needs_no_network():
    for text in (page(looked_into(BEST)), page(comparison()), page(difference())):
        assert text.startswith("<!doctype html>")
        assert not re.search(r'(src|href)="(?!#|data:)', text)
        assert "@import" not in text
        assert "<script" not in text
    for report in (looked_into(BEST), comparison(), difference()):
        assert report._repr_html_() == fragment(report)
    with pytest.raises(TypeError, match="no page for int"):
        page(1)


def luminance(colour: str) -> float:
    """Relative, as WCAG 2.2 defines it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_text_stands_out():
    """7 is the enhanced contrast of WCAG 2.2."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    for theme in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#\w{6})", theme))
        for text in ("ink", "soft", "warn"):
            assert contrast(colours[text], colours["back"]) >= 7
        assert contrast(colours["ink"], colours["head"]) >= 7
    assert all(contrast(INK, fill) >= 7 for fill in FILLS)


# In a frame as wide as a window: what reaches over its right edge outside of boxes that scroll.
_MEASURE = """<script>addEventListener("load", () => {
  const wide = [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll")
    && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName);
  const width = document.documentElement.scrollWidth;
  parent.document.documentElement.setAttribute("data-" + window.name,
    [innerWidth, width > innerWidth, wide.length].join(" "));
});</script>"""
WIDTHS = (1280, 400)


def test_pages_do_not_overflow_in_a_browser(tmp_path):
    """NOTE: in frames, since a window of Chromium has at least 500 pixels."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium")
    pages = {
        "inspection": looked_into(BEST),
        "sm90": looked_into_sm90(),
        "comparison": comparison(),
        "diff": difference(),
        "config": Sheet.of(BEST.replace(B_r=128, B_c=128)),
        "space": SpaceSheet.of(Space(dtype="FP16", d_head=128, B_r=64, B_c=64), "sm_90"),
        "ladder": climb(parts=()),
        "bench": BenchReport(run_of_four()),
    }
    frames = []
    for name, report in pages.items():
        # str: what Markup replaces by it escapes.
        text = escape(str(page(report)).replace("</body>", f"{_MEASURE}</body>"), quote=True)
        frames += [
            f'<iframe name="{name}-{width}" width="{width}" height="900" frameborder="0" '
            f'srcdoc="{text}"></iframe>'
            for width in WIDTHS
        ]
    path = tmp_path / "frames.html"
    path.write_text(f"<!doctype html><html><body>{''.join(frames)}</body></html>")
    result = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={tmp_path}/profile", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    measured = dict(re.findall(r' data-(\w+-\d+)="([^"]*)"', result.stdout.partition("<body")[0]))
    assert measured == {f"{name}-{w}": f"{w} false 0" for name in pages for w in WIDTHS}


def test_the_command(tmp_path):
    runner = CliRunner()
    path = tmp_path / "found.html"
    arguments = ["inspect", str(BEST.replace(B_r=128, B_c=128)), "--arch", "sm_86"]
    result = runner.invoke(app, [*arguments, "--json", "--html", str(path)])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["violations"]
    assert "not legal on sm_86" in path.read_text()
    for wrong in (["inspect", "no config"], ["inspect", str(BEST), "--arch", "sm_7"]):
        refused = runner.invoke(app, wrong)
        assert refused.exit_code == 1
        assert "error: " in refused.output
