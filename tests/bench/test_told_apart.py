"""Two records that differ in one thing, or in two, show under labels that tell them apart, and no
ratio is between different problems: every field of a record, in every format."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import lzma
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.bench_records import record
from typer.testing import CliRunner

from pyflash import Problem
from pyflash.bench import figures, records
from pyflash.bench.plain_text import markdown
from pyflash.bench.report import BenchReport
from pyflash.cli import app
from pyflash.op.options import OPTIONS
from pyflash.ui.page import page

OURS, FLASH, CUDNN = "pyflash", "PyTorch flash", "PyTorch cudnn"


def _other(name, value):
    """Another value of a problem's field."""
    if name == "dtype":
        return "FP16"
    if name == "device":
        return "cuda:1"
    if isinstance(value, bool):
        return not value
    return value * 2 or 777


def _changes():
    """By name: what makes another record of one, for each thing that a record tells of what was
    measured."""
    plain = record()["problem"] | {"total_q": 0, "total_k": 0, "page_size": 0}
    for field in dataclasses.fields(Problem):
        if field.name != "options":
            value = _other(field.name, plain[field.name])
            yield field.name, {"problem": {field.name: value}}
    for name, option in OPTIONS.items():
        kind = type(option.default)
        value = {bool: True, int: 64, float: 30.0}.get(kind, 0.5)
        yield name, {"options": {name: value}}
    for what in ("backward", "both"):
        yield f"pass {what}", {"what": what}
    facts = {"device": "NVIDIA A100-SXM4-80GB", "driver": "570.1", "cuda": "12.8",
             "torch": "2.10.0", "python": "3.11.9", "commit": "abc123"}  # fmt: skip
    for name, value in facts.items():
        yield f"environment {name}", {"environment": {name: value}}
    yield "time", {"time": "2026-11-22T12:00:00+00:00"}


CHANGES = dict(_changes())
PAIRS = [
    pair
    for pair in itertools.combinations(CHANGES, 2)
    if not all(name.startswith("pass ") for name in pair)
]


def changed(one, *changes):
    one = one | {"problem": one["problem"] | {"options": dict(one["problem"]["options"])}}
    for change in changes:
        one |= {name: change[name] for name in ("what", "time") if name in change}
        one["problem"] |= change.get("problem", {})
        one["problem"]["options"] |= change.get("options", {})
        one["environment"] = one["environment"] | change.get("environment", {})
    bytes_per_flop = 1 / one["problem"]["seqlen_k"]
    forward = one["what"] == "forward"
    one["gb_per_second"] = 1e3 * one["tflops"] * bytes_per_flop if forward else None
    return one


def problem_of(*changes, rates):
    """The records of one problem: a rate for each contender, by name."""
    return [changed(record(name, tflops=rate), *changes) for name, rate in rates.items()]


RATES = ({FLASH: 101.0, CUDNN: 201.0, OURS: 301.0}, {FLASH: 401.0, CUDNN: 801.0, OURS: 601.0})


def both(*changes):
    """The records of the plain problem, and of the one that is changed."""
    plain, other = (
        problem_of(*which, rates=rates) for which, rates in zip(((), changes), RATES, strict=True)
    )
    return [*plain, *other]


def stdout(tmp_path, found, *arguments):
    path = tmp_path / "runs.jsonl"
    path.unlink(missing_ok=True)
    records.append(path, found)
    result = CliRunner().invoke(app, ["bench", "--read", str(path), *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def markdown_cells(text):
    """By (row, column)."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found = {}
    for first, *cells in rows:
        for column, cell in zip(header[1:], cells, strict=True):
            if cell:
                assert (first, column) not in found
                found[first, column] = cell
    return found


def text_tables(text):
    """By title: the rate of each contender."""
    found = {}
    for part in text.strip().split("\n\n"):
        title, header, *rows = part.splitlines()
        assert title not in found
        column = header.split().index("TFLOP/s")
        found[title] = {re.split(r"\s{2,}", row)[-1]: float(row.split()[column]) for row in rows}
    return found


@pytest.mark.parametrize("names", [*((name,) for name in CHANGES), *PAIRS], ids="+".join)
def test_tables_show_both_and_divide_within_a_problem(tmp_path, names):
    """For a pair of changes, the problem that has one but not the other is there too."""
    rates = (*RATES, {FLASH: 51.0, CUDNN: 71.0, OURS: 91.0})
    found = both(*(CHANGES[name] for name in names))
    if len(names) == 2:
        found += problem_of(CHANGES[names[0]], rates=rates[2])
    rates = rates[: len(found) // 3]
    by_title = text_tables(stdout(tmp_path, found))
    assert sorted(by_title.values(), key=str) == sorted(rates, key=str)
    cells = markdown_cells(stdout(tmp_path, found, "--format", "markdown", "--over", CUDNN))
    expected = (f"{r[OURS]:.0f} / {r[OURS] / r[CUDNN]:.2f}" for r in rates)
    assert sorted(cells.values()) == sorted(expected)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("which", [0, 1])
def test_no_ratio_to_another_problem(tmp_path, name, which):
    """One of the two problems lacks the contender that is divided by."""
    found = both(CHANGES[name])
    del found[3 * which + 1]
    cells = markdown_cells(stdout(tmp_path, found, "--format", "markdown", "--over", CUDNN))
    rates = RATES[1 - which]
    assert list(cells.values()) == [f"{rates[OURS]:.0f} / {rates[OURS] / rates[CUDNN]:.2f}"]


@pytest.mark.parametrize("name", CHANGES)
def test_json_and_csv_hold_both(tmp_path, name):
    found = both(CHANGES[name])
    lines = stdout(tmp_path, found, "--format", "json").splitlines()
    assert list(map(json.loads, lines)) == found
    rows = list(csv.DictReader(io.StringIO(stdout(tmp_path, found, "--format", "csv"))))
    of_figures = {"seconds", "spread", "tflops", "gb_per_second", "ratio"}
    plain, other = (
        {column: cell for column, cell in row.items() if column not in of_figures}
        for row in (rows[2], rows[5])
    )
    assert plain != other


@pytest.mark.parametrize("name", CHANGES)
def test_rows_for_the_profiler_tell_both_apart_or_are_refused(tmp_path, name):
    path = tmp_path / "runs.jsonl"
    records.append(path, both(CHANGES[name]))
    result = CliRunner().invoke(app, ["bench", "--read", str(path), "--format", "cutlass"])
    if result.exit_code:
        assert result.stderr.startswith("error: ")
        assert "the profiler's columns" in result.stderr
        return
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    named = ("Provider", "Operation", "gemm_kind", "m", "n", "k", "batch_count", "A")
    keys = [tuple(row[column] for column in named) for row in rows]
    assert len(set(keys)) == 6 or name == "time"  # a run again, of the same problem


class _Tables(HTMLParser):
    """The text of the tables of each section, by its heading."""

    def __init__(self, text):
        super().__init__()
        self.tag, self.heading, self.sections = "", "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tag = tag

    def handle_data(self, text):
        if self.tag == "h2":
            self.sections.append((text, []))
        elif self.sections and self.tag in ("td", "th"):
            self.sections[-1][1].append(text)
        self.tag = ""


@pytest.mark.parametrize("name", CHANGES)
def test_a_page_has_a_table_for_each(name, monkeypatch):
    monkeypatch.setattr("pyflash.bench.report.drawn", lambda of: [])
    text = page(BenchReport(both(CHANGES[name])))
    sections = [(heading, cells) for heading, cells in _Tables(text).sections if OURS in cells]
    assert len({heading for heading, _ in sections}) == 2
    for (_, cells), rates in zip(sections, RATES, strict=True):
        assert [cell for cell in cells if cell in ("301", "601")] == [f"{rates[OURS]:.0f}"]
    ids = re.findall(r'<section id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert ids == re.findall(r'href="#([^"]*)"', text)
    for device in {r["environment"]["device"] for r in both(CHANGES[name])}:
        assert device in text.partition("</h1>")[0]
    for value in CHANGES[name].get("environment", {}).values():
        assert value in text


def points_of(figure):
    """Every point with what tells the reader which it is: (panel, line, place) and its rate."""
    for ax in figure.axes:
        ticks = dict(zip(ax.get_xticks(), ax.get_xticklabels(), strict=True))
        notes = {t.xy[0]: t.get_text() for t in ax.texts}
        for line in ax.lines:
            label = line.get_label()
            if label.startswith("_"):  # a roof, or a cap of an error bar
                label = next((c.get_label() for c in ax.containers if c.lines[0] is line), None)
            if label is None:
                continue
            for x, y in line.get_xydata():
                place = ticks[x].get_text() if x in ticks else notes[x]
                yield (ax.get_title(), label, place), y


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("draw", [figures.speed, figures.roofline])
def test_figures_show_both(name, draw):
    pytest.importorskip("matplotlib")
    found = both(CHANGES[name])
    shown = [one for one in found if draw is figures.speed or one["what"] == "forward"]
    points = list(points_of(draw(found)))
    mine = [(key, rate) for key, rate in points if key[1] == OURS]
    assert sorted(rate for _, rate in mine) == sorted(
        one["tflops"] for one in shown if one["contender"] == OURS
    )
    assert len({key for key, _ in mine}) == len(mine)


def test_a_roof_is_that_of_the_device_below_it():
    pytest.importorskip("matplotlib")
    figure = figures.roofline(both(CHANGES["environment device"]))
    roofs = [max(ax.lines[-1].get_ydata()) for ax in figure.axes]
    assert roofs == [989.4, 312]
    with pytest.raises(ValueError, match="the peak rates of abacus are not known"):
        figures.roofline(both({"environment": {"device": "abacus"}}))


def test_lengths_of_one_run_share_a_row_whether_batch_or_tokens_stay():
    def rows(*sizes):
        found = []
        for batch, seqlen in sizes:
            change = {"problem": {"batch": batch}}
            found += [changed(record(name, seqlen), change) for name in (FLASH, OURS)]
        return list(dict.fromkeys(row for row, _ in markdown_cells(
            markdown(found, OURS, FLASH))))  # fmt: skip

    assert rows((8, 512), (4, 1024), (2, 2048)) == ["128 full"]
    assert rows((4, 512), (4, 1024)) == ["128 full"]
    assert rows((4, 512), (4, 1024), (1, 512), (1, 1024)) == [
        "128 full, batch 4", "128 full, batch 1",
    ]  # fmt: skip
    assert rows((8, 512), (4, 1024), (16, 512), (8, 1024)) == [
        "128 full, 4096 tokens", "128 full, 8192 tokens",
    ]  # fmt: skip


def test_what_all_rows_share_stands_above_them():
    found = both(CHANGES["dtype"])
    text = markdown(found, OURS, CUDNN)
    head = text.partition("\n\n")[0]
    for words in (f"TFLOP/s of {OURS}", CUDNN, "forward", "batch 4", "heads 16", "NVIDIA H200"):
        assert words in head
    assert "FP16" not in head
    assert "BF16" in markdown(found[:3], OURS, CUDNN).partition("\n\n")[0]


def test_the_table_of_speed_is_that_of_its_records(tmp_path):
    root = Path(__file__).parents[2]
    records = tmp_path / "speed.jsonl"
    packed = Path(__file__).parent / "h200_speed.jsonl.xz"  # as in docs/data
    records.write_bytes(lzma.decompress(packed.read_bytes()))
    read = ["--read", str(records), "--format", "markdown"]
    tables = []
    for dtype in ("bf16", "fp16"):
        arguments = ["bench", *read, "--dtype", dtype, "--over", CUDNN]
        tables.append(CliRunner().invoke(app, arguments).stdout.partition("\n\n")[2])
    assert tables[0] != tables[1]
    assert tables[0] in (root / "docs/experiments/2026-11-speed.md").read_text()
