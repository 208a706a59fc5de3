"""`pyflash variant`: text and JSON, and what is refused."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pyflash.cli import app
from pyflash.variant import check, parse
from pyflash.variant.library import named, names

COMMANDS = ("show", "check", "tiles", "emit")


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["variant", *arguments])


def read(*arguments: str):
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("command", ["show", "tiles", "emit"])
def test_every_command_takes_every_variant(command, name):
    lengths = ("--seqlen-q", "48", "--block-q", "16", "--block-k", "16")
    result = invoke(command, name, *(lengths if command == "tiles" else ()))
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) > 3


@pytest.mark.parametrize("name", names())
def test_every_variant_is_checked_without_a_fault(name):
    entry = named(name)
    found = check.check(entry.variant, entry)
    assert found == check.Findings(320, 48, True, ())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_text(command):
    text = "a(w: i32, t: f32[2]): s * t[h, q] where q - k <= w"
    assert read(command, text)
    result = invoke(command, "a: s + wind")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: wind is unknown: declare it as a parameter, such as wind: f32[1]: a: s + >>>wind\n"
    )
    assert "did you mean causal" in invoke(command, "casual").stderr


def test_list_has_every_variant():
    found = read("list")
    assert [entry["name"] for entry in found] == names()
    for entry in found:
        assert parse(entry["text"]).key == entry["key"]
        assert entry["formula"] == named(entry["name"]).formula
    assert all(name in invoke("list").stdout for name in names())


def test_show_counts_what_a_score_costs():
    found = read("show", "softcap")
    assert found["costs"]["pair"] == {"instructions": 2, "special": 2, "kept": None}
    assert found["structure"] == "everything"
    assert found["derivative"] == "(1.0 - tanh(s / p0) * tanh(s / p0)) * (1.0 / p0) * p0"


def test_tiles_are_drawn():
    drawn = invoke(
        "tiles", "a: s where k <= q", "--seqlen-q", "8", "--block-q", "2", "--block-k", "2"
    )
    assert drawn.stdout.splitlines() == [
        "▒···", "█▒··", "██▒·", "███▒", "· none 6 (38%), ▒ some 4 (25%), █ all 6 (38%)",
    ]  # fmt: skip
    ragged = read(
        "tiles", "a: s where k < 5", "--seqlen-q", "2", "--seqlen-k", "7", "--block-k", "3"
    )
    assert ragged["tiles"] == [["all", "some", "none"]]
    assert ragged["counts"] == {"none": 1, "some": 1, "all": 1}


def test_tiles_take_values():
    line = ["documents", "--seqlen-q", "4", "--block-q", "2", "--block-k", "2"]
    found = read("tiles", *line, "--value", "doc=[[0, 0, 1, 1]]")
    assert found["tiles"] == [["all", "none"], ["none", "all"]]
    unknown = read("tiles", "a(d: i32[1]): s where d[q] == d[k]", "--seqlen-q", "256")
    assert unknown["counts"]["some"] == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["window", "--value", "width=3"], "expected name=JSON, of the parameters left, right"),
        (["window", "--value", "left"], "expected name=JSON"),
        (["window", "--value", "left=x"], "expected JSON"),
        (["window", "--value", "left=[1]"], "expected 0 axes"),
        (["documents", "--value", "doc=[[1], [2, 3]]"], "expected 2 axes"),
        (["documents", "--value", "doc=[]"], "expected 2 axes"),
        (["causal", "--seqlen-q", "99999", "--block-q", "1"], "expected at most 65536"),
    ],
)
def test_wrong_options_of_tiles_are_refused(arguments, words):
    result = invoke("tiles", *arguments)
    assert result.exit_code == 1
    assert words in result.stderr


def test_emit_writes_a_file(tmp_path):
    path = tmp_path / "alibi.h"
    assert invoke("emit", "alibi", "--header", str(path)).stdout == ""
    assert path.read_text() == read("emit", "alibi")["cpp"]
    assert read("emit", "a: s where k <= q")["mask"] == ["index k", "index q", "<=.i32"]


def test_check_finds_a_wrong_reference(monkeypatch):
    """And a wrong judgement of a tile."""
    entry = named("causal")
    wrong = type(entry)(entry.variant, "", "", lambda at: at.s, None)
    found = check.check(entry.variant, wrong)
    assert found.faults
    assert "the reference differs" in found.faults[0]
    monkeypatch.setattr(check, "tiles", lambda *_: [["all"] * 4] * 3)
    result = invoke("check", "causal")
    assert result.exit_code == 1
    assert "is called all" in " ".join(result.stdout.split())
