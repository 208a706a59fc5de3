"""The ladder, its page, and figures of a bench."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.bench_records import record, run_of_four
from support.listings import BASE, BEST, recorded_kernel
from typer.testing import CliRunner

from pyflash import named_set
from pyflash.bench import figures, ladder
from pyflash.bench.ladder import Step, climb, what_changed
from pyflash.bench.report import BenchReport
from pyflash.cli import app
from pyflash.ui.page import page


def test_steps_are_those_of_the_set():
    climbed = climb(parts=())
    assert [step.config for step in climbed.steps] == named_set("prog")
    assert [step.adds for step in climbed.steps] == [adds for adds, _ in BASE.family.ladder]
    assert climbed.missing == {}
    with pytest.raises(ValueError, match=r"unknown parts \['fast'\]"):
        climb(parts=["fast"])


def test_speeds_need_no_package_for_layouts():
    """nvidia-cutlass may be absent where CUTLASS_PATH has the headers."""
    script = """if True:
        import sys
        sys.modules["pycute"] = None
        from pyflash.bench.ladder import climb
        from pyflash.ui import page
        assert list(climb(parts=["speed"]).missing.values()) in ([], ["torch finds no CUDA GPU"])
        from pyflash.layouts import Layout
        Layout((8, 8))
    """
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1].endswith(
        "CutlassError: layouts need pycute, which is not installed: install it with "
        "`pip install nvidia-cutlass==4.2.0.0`"
    )


def test_what_is_missing_is_told_and_the_rest_is_there(monkeypatch):
    family = SimpleNamespace(ladder=[("base", BASE), ("all of it", BEST)])
    monkeypatch.setattr(ladder, "FAMILIES", [family])
    monkeypatch.setattr(ladder, "_compile", lambda configs, arch: None)
    monkeypatch.setattr(ladder, "_build_emulated", lambda configs, arch: None)
    monkeypatch.setattr(ladder, "compiled_kernels", lambda c, arch: [recorded_kernel(c)])
    monkeypatch.setattr(ladder, "_bank_conflicts", {BASE: 1000, BEST: 0}.__getitem__)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    climbed = climb(arch="sm_90")
    assert climbed.missing == {"speed": "torch finds no CUDA GPU"}
    steps = climbed.tables()[0]
    kernel = recorded_kernel(BASE)
    assert steps.rows[0][1:] == (
        "", "", str(kernel.registers), "0", str(kernel.loop.n_instructions), "1,000",
    )  # fmt: skip
    (changed,) = climbed.tables()[1].rows
    assert "bank conflicts 1,000 to 0" in changed[1]
    assert json.loads(json.dumps(climbed.to_dict()))["steps"][1]["bank_conflicts"] == 0
    text = page(climbed)
    assert "no speed: torch finds no CUDA GPU" in text
    assert "bank conflicts 1,000 to 0" in text


def test_what_changed_names_the_classes_that_changed_most():
    steps = [Step(i, "", c, kernel=recorded_kernel(c)) for i, c in enumerate((BASE, BEST))]
    text = what_changed(*steps)
    mixes = [step.kernel.loop.mix for step in steps]
    apart = {name: abs(mixes[1].get(name, 0) - mixes[0].get(name, 0)) for name in mixes[0]}
    most = max(apart, key=apart.get)
    assert f"{most} {mixes[0][most]} to {mixes[1].get(most, 0)}" in text
    assert text.startswith(f"registers {steps[0].kernel.registers} to {steps[1].kernel.registers}")


def test_a_step_has_its_speed_beside_the_baseline():
    step = Step(1, "base", BASE, record(tflops=200.0) | {"ratio": 0.5})
    assert (step.tflops, step.percent_of_baseline) == (200.0, 50.0)
    climbed = dataclasses.replace(climb(parts=()), steps=[step], baseline=record("PyTorch flash"))
    assert climbed.tables()[0].rows[0][1:3] == ("200", "50")
    assert climbed.page_title.startswith("The ladder on NVIDIA H200")
    assert "1 base 200 TFLOP/s, PyTorch flash 400 TFLOP/s" in page(climbed)


def test_the_command_needs_no_gpu():
    result = CliRunner().invoke(app, ["ladder", "--part", "speed", "--json", "--arch", "sm_80"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["steps"]) >= 7


# Figures


def test_figures_are_named_by_what_they_are(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("speed.svg", "speed.png"):
        figures.save(figures.speed(run_of_four()), tmp_path / name)
    svg = (tmp_path / "speed.svg").read_text()
    figures.save(figures.speed(run_of_four()), tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").read_text() == svg
    assert (tmp_path / "speed.png").read_bytes()[:4] == b"\x89PNG"


def test_speed_has_a_panel_for_each_mask_and_a_line_for_each_contender():
    pytest.importorskip("matplotlib")
    figure = figures.speed([*run_of_four(), record("pyflash", causal=True)])
    full, causal = figure.axes
    assert full.get_title() == "forward, d_head 128, full, BF16"
    assert causal.get_title() == "forward, d_head 128, causal, BF16"
    lines = {c.get_label(): list(c.lines[0].get_ydata()) for c in full.containers}
    expected = {}
    for one in run_of_four():
        expected.setdefault(one["contender"], []).append(one["tflops"])
    assert lines == expected
    assert [tick.get_text() for tick in full.get_xticklabels()] == ["512", "4k"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(expected)


def test_contenders_differ_in_more_than_colour():
    styles = figures._styles([record(name) for name in "abcdefgh"])
    assert len({(s["marker"], s["linestyle"]) for s in styles.values()}) == 8
    assert len({s["color"] for s in styles.values()}) == 7


def test_the_roof_is_that_of_the_gpu():
    pytest.importorskip("matplotlib")
    figure = figures.roofline(run_of_four())
    (ax,) = figure.axes
    *points, roof = ax.lines
    assert [line.get_label() for line in points] == ["PyTorch flash", "pyflash"]
    for line in points:
        assert list(line.get_xdata()) == pytest.approx([2000, 2000])  # FLOPs per byte
    assert max(roof.get_ydata()) == 989.4
    x, y = roof.get_xydata()[0]
    assert y == pytest.approx(4800 * x / 1e3)
    unknown = [r | {"environment": r["environment"] | {"device": "abacus"}} for r in run_of_four()]
    with pytest.raises(ValueError, match="peak rates of abacus are not known"):
        figures.roofline(unknown)


def test_without_matplotlib_the_reason_is_told():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pyflash.cli import app; app(['bench', '--plot', 'figure.svg'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "pip install 'pyflash[plot]'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_nothing_timed_is_no_figure():
    wrong = record() | {"status": "wrong", "timing": None}
    with pytest.raises(ValueError, match="no contender was timed"):
        figures.speed([wrong])
    text = page(BenchReport([wrong]))
    assert "no contender was timed" in text or "pyflash[plot]" in text


def test_the_page_of_a_bench_needs_no_network():
    pytest.importorskip("matplotlib")
    text = page(BenchReport([*run_of_four(), record("pyflash", what="backward")]))
    assert text.count("data:image/svg+xml;base64,") == 2
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "forward: BF16, batch 4, seqlen 512" in text
    assert "backward: BF16, batch 4, seqlen 4096" in text
    assert "NVIDIA H200" in text
