"""`pyflash tune` without a GPU: what it refuses, and journals of other machines."""

import json
import re
import tarfile
from pathlib import Path

import pytest
import torch
from support.pages import check_page
from typer.testing import CliRunner

import pyflash
from pyflash.cli import app
from pyflash.tuner.journal import read_journal
from pyflash.tuner.measurer import Measurer
from pyflash.tuner.picture import seen_in
from pyflash.tuner.spaces import parse_space

NAME = "fp16,batch=1,heads=2,seqlen=40,d_head=64"
SPACE = "d_head=64 dtype=FP16 B_r=64 B_c=32,64 n_warps=4 async_copy=true swizzled=true"
ARCHIVE = Path(__file__).parents[2] / "docs/data/h200.tar.xz"
with tarfile.open(ARCHIVE) as archive:
    RECORDS = {
        Path(member.name).name: archive.extractfile(member).read()
        for member in archive
        if member.isfile()
    }
TUNED = sorted(name for name, text in RECORDS.items() if b'"what": "tune"' in text[:200])
OTHERS = sorted(set(RECORDS) - set(TUNED))
assert TUNED
assert OTHERS
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def run(*arguments):
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


def assert_one_line(result, says):
    assert result.exit_code == 1, result.output
    assert re.fullmatch(f"error: [^\n]*({says})[^\n]*\n", result.stderr), result.stderr


@WITHOUT_GPU
@pytest.mark.parametrize("device", [[], ["--device", "cpu"], ["--device", "cuda"]])
@pytest.mark.parametrize("options", [[], ["--install"], ["--limit", "0", "--install"], ["--json"]])
def test_without_a_gpu_it_says_so_before_anything_is_measured(
    tmp_path, monkeypatch, device, options
):
    monkeypatch.setattr(Measurer, "check", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(Measurer, "sample", lambda *_: pytest.fail("measured"))
    path = tmp_path / "journal.jsonl"
    result = run(*device, *options, "--space", SPACE, "--problem", NAME, "--journal", path)
    assert_one_line(result, "no GPU to tune for")
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@WITHOUT_GPU
@pytest.mark.parametrize("device", [None, "cpu", "cuda"])
def test_the_function_refuses_as_well(tmp_path, device):
    with pytest.raises(RuntimeError, match=r"no GPU to tune for"):
        pyflash.tune(parse_space(SPACE), NAME, journal=tmp_path / "j", device=device)
    assert list(tmp_path.iterdir()) == []


def unpacked(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(RECORDS[name])
    return path


@pytest.mark.parametrize("name", TUNED)
def test_a_journal_of_another_machine_is_shown(tmp_path, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "400")
    path = unpacked(tmp_path, name)
    html, picture = tmp_path / "page.html", tmp_path / "tune.svg"
    result = run("--read", path, "--json", "--html", html, "--picture", picture)
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    records = read_journal(path)
    winners = {r["problem"]: r for r in records if r["kind"] == "winner"}
    assert values["gpu"] == "NVIDIA H200"
    assert list(values["problems"]) == [seen.name for seen in seen_in(records)]
    for name, problem in values["problems"].items():
        assert problem["state"] == "winner"
        assert problem["best"]["config"] == winners[name]["config"]
        times = [candidate["seconds"] for candidate in problem["candidates"]]
        assert times == sorted(times)
    headings = check_page(html.read_text())
    assert "Tuning on NVIDIA H200" in html.read_text()
    assert set(winners) <= set(headings)
    assert "<svg" in picture.read_text()[:1000]
    shown = run("--read", path)
    assert shown.exit_code == 0
    assert all(winner["config"] in " ".join(shown.stdout.split()) for winner in winners.values())
    assert path.read_bytes() == RECORDS[path.name]


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_tuning_journal_is_refused(tmp_path, name):
    path = unpacked(tmp_path, name)
    assert_one_line(run("--read", path), "holds no measured candidate|is not a record of a journal")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--read", "a.jsonl", "--install"], "--read .*no --install"),
        (["--read", "a.jsonl", "--dry-run"], "--read .*no --dry-run"),
        (["--dry-run", "--install"], "--dry-run .*no --install"),
        (["--dry-run", "--html", "page.html"], "--dry-run .*no --html"),
        (["--dry-run", "--picture", "tune.svg"], "--dry-run .*no --picture"),
        (["--read", "missing.jsonl"], "missing.jsonl: No such file"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert_one_line(run(*arguments), says)
    assert list(tmp_path.iterdir()) == []
