"""Every option beside --read picks records, or is refused; none is ignored. The same of --host."""

from __future__ import annotations

import itertools
import json

import pytest
import typer
from support.bench_records import record
from typer.testing import CliRunner

from pyflash.bench import records
from pyflash.cli import app
from pyflash.variant.library import named

FP16 = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
OTHER = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"
IN_PROG = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles"

ALIBI = f"alibi {named('alibi').variant.key}"
# By option: its arguments, and which records it leaves.
OPTIONS = {
    "configs": ([FP16], lambda r: r["short_form"] in (FP16, None) and r["contender"] != "pyflash"),
    "set_name": (
        ["--set", "prog"],
        lambda r: r["short_form"] in (FP16, IN_PROG, None) and r["contender"] != "pyflash",
    ),
    "backend": (
        ["--backend", "cudnn"],
        lambda r: r["contender"] not in ("PyTorch flash", "FlashAttention-3"),
    ),
    "passes": (["--pass", "backward,both"], lambda r: r["what"] == "backward"),
    "decode": (["--decode"], lambda r: r["problem"]["seqlen_q"] == 1),
    "seqlen": (["--seqlen", "1k,4k"], lambda r: r["problem"]["seqlen_q"] == 4096),
    "tokens": (
        ["--tokens", "16384"],
        lambda r: r["problem"]["batch"] == 16384 // r["problem"]["seqlen_k"],
    ),
    "d_head": (["--d-head", "64,96"], lambda r: r["problem"]["d_head"] == 64),
    "heads": (["--heads", "32"], lambda r: r["problem"]["heads_q"] == 32),
    "heads_kv": (["--heads-kv", "8"], lambda r: r["problem"]["heads_kv"] == 8),
    "mask": (
        ["--mask", "full"],
        lambda r: r["problem"]["options"] == {"causal": False} and "variant" not in r["problem"],
    ),
    "variant": (["--variant", "alibi"], lambda r: r["problem"].get("variant") == ALIBI),
    "dtype": (["--dtype", "fp16"], lambda r: r["problem"]["dtype"] == "FP16"),
    "device": (["--device", "cuda"], lambda r: r["problem"]["device"].startswith("cuda")),
}
REFUSED = {
    "samples": ["--samples", "9"], "host": ["--host"], "out": ["--out", "more.jsonl"],
    "value": ["--value", "n=1"],
}  # fmt: skip
SHOWING = {"read", "csv", "plot", "roofline", "html", "form", "as_json", "over"}

FIELDS = (
    {"dtype": "FP16"},
    {"d_head": 64},
    {"seqlen_q": 1},
    {"seqlen_q": 512, "seqlen_k": 512},
    {"batch": 8},
    {"heads_q": 32},
    {"heads_kv": 8},
    {"device": "cpu"},
    {"device": "cuda:1"},
    {"options": {"causal": True}},
    {"options": {"causal": False, "window_left": 64}},
    {"variant": ALIBI},
)


def every_record():
    """Each field by itself, and two of them; each pass, and each contender."""
    of_fields = [*((one,) for one in FIELDS), *itertools.combinations(FIELDS, 2), ()]
    contenders = ("pyflash", "PyTorch flash", "PyTorch cudnn", "FlashAttention-3",
                  FP16, OTHER, IN_PROG)  # fmt: skip
    for fields, what, contender in itertools.product(
        of_fields, ("forward", "backward"), contenders
    ):
        one = record(contender, what=what)
        for field in fields:
            one["problem"] |= field
        yield one | {"short_form": contender if contender.startswith("(") else None}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "runs.jsonl"
    records.append(path, every_record())
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_every_option_is_tried():
    command = typer.main.get_command(app).commands["bench"]
    names = {param.name for param in command.params} - SHOWING - {"help"}
    assert names == OPTIONS.keys() | REFUSED.keys()


@pytest.mark.parametrize(
    "names", [*((name,) for name in OPTIONS), *itertools.combinations(OPTIONS, 2)], ids="+".join
)
def test_options_leave_what_they_ask_for(runs, names):
    result = invoke("--read", runs, "--format", "json", *(a for n in names for a in OPTIONS[n][0]))
    if names == ("configs", "set_name"):
        assert "exclude each other" in result.stderr
        return
    keeps = [OPTIONS[name][1] for name in names]
    if {"seqlen", "decode"} <= set(names):  # lengths are keys
        keeps[names.index("seqlen")] = lambda r: r["problem"]["seqlen_k"] == 4096
    expected = [r for r in every_record() if all(keep(r) for keep in keeps)]
    if not expected:
        assert result.exit_code == 1
        assert f"none of its {len(list(every_record()))} records fits " in result.stderr
        return
    assert 0 < len(expected) < len(list(every_record()))
    assert [json.loads(line) for line in result.stdout.splitlines()] == expected


@pytest.mark.parametrize("form", ["table", "csv", "markdown", "cutlass"])
def test_every_format_shows_what_is_left(runs, form, tmp_path):
    kept = ["--pass", "forward", "--mask", "full", "--device", "cuda:1"]
    less = tmp_path / "less.jsonl"
    less.write_text(invoke("--read", runs, "--format", "json", *kept).stdout)
    found = [invoke("--read", path, "--format", form, *more) for path, more in
             ((runs, kept), (less, ()))]  # fmt: skip
    assert found[0].output == found[1].output
    assert found[0].output != invoke("--read", runs, "--format", form).output


def test_what_no_record_has_is_told(runs):
    result = invoke("--read", runs, "--d-head", "256", "--dtype", "bf16")
    assert result.exit_code == 1
    assert "records fits --d-head, --dtype: `pyflash bench --read" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "fp8"], "--dtype fp8: expected some of fp16, bf16"),
        (["--mask", "none"], "--mask none: expected some of full, causal"),
        (["--seqlen", "long"], "--seqlen long: expected numbers"),
        (["--pass", "sideways"], "--pass sideways: expected some of"),
        (["--backend", "flash_attn_9"], "unknown backends ['flash_attn_9']"),
        (["--set", "none"], "none"),
        (["no config"], "no config"),
    ],
)
def test_a_wrong_value_is_refused(runs, arguments, message):
    result = invoke("--read", runs, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("name", REFUSED)
def test_options_of_measuring_are_refused(runs, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("--read", runs, *REFUSED[name])
    assert result.exit_code == 1
    assert f"--read measures nothing: it has no {REFUSED[name][0]}" in result.stderr
    assert not (tmp_path / "more.jsonl").exists()


@pytest.mark.parametrize("name", [*OPTIONS, "csv", "plot", "roofline", "html"])
def test_host_refuses_what_it_does_not_do(name, tmp_path):
    if name == "device":
        return
    arguments = OPTIONS[name][0] if name in OPTIONS else [f"--{name}", tmp_path / "file.svg"]
    result = invoke("--host", *arguments)
    assert result.exit_code == 1
    flag = "CONFIG" if name == "configs" else arguments[0]
    assert f"--host has no {flag}: its calls are fixed" in result.stderr


def test_over_is_of_markdown(runs):
    result = invoke("--read", runs, "--over", "PyTorch cudnn")
    assert "--over: --format markdown alone divides" in result.stderr
