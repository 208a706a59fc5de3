"""The command line as a person and a program meet it: help, errors, JSON, exit statuses."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import time

import pytest
from support.invoked import assert_one_line, invoke
from support.profiles import RECORDED, problem_of
from typer.testing import CliRunner

import pyflash
from pyflash import FlashForwardKernelConfig, Space
from pyflash.cli import app
from pyflash.commands.emulate import _emulating
from pyflash.compare import compare, read
from pyflash.compare.report import line_cells
from pyflash.config import ARCHS, FAMILIES, parse
from pyflash.emulator import Counts, Report, SharedTraffic
from pyflash.emulator.table import hints, renderable
from pyflash.ui.app import show, working
from pyflash.ui.tables import Table

BEST = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
ILLEGAL = "(FP16, 128, 64, 64, 4): eager+load_0_0_0_tiles"


def test_help_imports_neither_torch_nor_a_compiler():
    """What makes `pyflash --help` quick, told by what is imported instead of by a clock."""
    code = (
        "import sys\nfrom pyflash.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    imported = set(result.stderr.split())
    assert "pyflash.config" in imported
    for name in ("torch", "numpy", "rich.console", "rich.markdown", "matplotlib", "pygments",
                 "networkx", "pyflash.codegen.build", "pyflash.op.library"):  # fmt: skip
        assert name not in imported
    assert len(imported) < 295


def test_no_command_imports_torch_before_it_runs():
    code = (
        "import sys\nfrom pyflash.cli import app\n"
        "try: app([sys.argv[1], '--help'])\nexcept SystemExit: assert 'torch' not in sys.modules"
    )
    for name in ("bench", "emulate", "config"):
        subprocess.run([sys.executable, "-c", code, name], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["config", BEST, "--arch", "sm_9"], ["sm_90"]),
        (["build", "--arch", "sm_80,sm_12"], ["sm_80,sm_120"]),
        (["build", "--set", "prog"], ["prog", "prog_all"]),
        (["build", "--only", "plain,right_window+sof"], ["plain,right_window+softcap"]),
        (["emulate", BEST, "--order", "r"], ["random"]),
        (["select", "--dtype", "b"], ["bf16"]),
        (["space", "n_w"], ["n_warps="]),
        (["space", FAMILIES[-1].name[:-2]], [FAMILIES[-1].name]),
        (["config", str(FAMILIES[0].ranked[0])[:-1]], [str(FAMILIES[0].ranked[0])]),
        (["inf"], ["info"]),
    ],
    ids=lambda value: " ".join(value[:1]),
)
def test_a_shell_completes(words, expected):
    """What `pyflash --install-completion` installs asks so."""
    variables = {"COMP_WORDS": shlex.join(["pyflash", *words]), "COMP_CWORD": str(len(words))}
    variables["_PYFLASH_COMPLETE"] = "complete_bash"
    asked = CliRunner().invoke(app, [], prog_name="pyflash", env=variables)
    assert asked.stdout.splitlines() == expected


def test_config_tells_rules_resources_and_canonical_form():
    result = invoke("config", BEST, "--json")
    assert result.exit_code == 0
    sheet = json.loads(result.stdout)
    config = FlashForwardKernelConfig.parse(BEST)
    assert sheet["canonical"] == str(config.canonical())
    assert sheet["fields"] == config.to_dict()
    assert list(sheet["archs"]) == [arch.name for arch in ARCHS]
    resources = sheet["archs"]["sm_90"]["resources"]
    assert resources["num_ctas_per_sm"] == config.num_ctas_per_sm("sm_90")
    assert str(resources["register_demand"]) in invoke("config", BEST).stdout


def test_config_that_is_not_legal_names_the_rule_and_exits_with_1():
    result = invoke("config", ILLEGAL, "--arch", "sm_90")
    assert result.exit_code == 1
    assert "eager_needs_async" in result.stdout
    sheet = json.loads(invoke("config", ILLEGAL, "--json").stdout)
    assert not any(found["legal"] for found in sheet["archs"].values())
    assert sheet["archs"]["sm_80"]["resources"] is None


def test_config_of_the_other_family_and_built_as_another():
    sm90 = json.loads(invoke("config", "(FP16, 128, 128, 128, 2): sm90+stages_2", "--json").stdout)
    assert sm90["family"] == "sm90_forward"
    assert not sm90["archs"]["sm_80"]["legal"]
    buffered = BEST.replace("load_0_2_2_tiles", "load_0_0_0_tiles+buffer")
    assert "built as (FP16, 128, 64, 64, 4)" in invoke("config", buffered).stdout


def test_space_counts_what_the_rules_refuse():
    assignments = ["dtype=fp16", "d_head=128", "B_r=64,128", "B_c=64", "n_warps=4"]
    found = json.loads(invoke("space", *assignments, "--arch", "sm_86", "--json").stdout)
    space = Space(dtype="FP16", d_head=128, B_r=[64, 128], B_c=64, n_warps=4)
    assert found["n_configs"] == len(space)
    assert found["legal"] == [str(config) for config in space.legal("sm_86")]
    refusals = space.explain("sm_86")
    assert found["n_legal"] == len(space) - len(refusals)
    for rule, entry in found["refused"].items():
        broken = sum(any(v.rule == rule for v in r.violations) for r in refusals)
        assert entry["configs"] == broken
    listed = invoke("space", *assignments, "--arch", "sm_86", "--list").stdout.splitlines()
    assert listed == found["legal"]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("sm70_forward", "unknown family 'sm70_forward'"),
        ("rows=64", "unknown word 'rows=64' in space 'rows=64': expected FIELD=VALUE,VALUE"),
        ("B_r=", "unknown word 'B_r='"),
        ("B_r=many", "'many' is not a number"),
        ("B_r=64 B_r=128", "B_r is given twice"),
        ("swizzled=maybe", "'maybe' is not true or false"),
        ("dtype=FP8", "'FP8' is not one of FP16, BF16"),
        ("d_head=128,rows=64", "unknown word 'rows=64' in space 'd_head=128,rows=64'"),
    ],
)
def test_space_refuses_in_words(assignment, message):
    result = invoke("space", assignment)
    assert_one_line(result)
    assert message in result.stderr


@pytest.mark.parametrize("separator", [" ", ",", ", "])
def test_space_takes_fields_behind_blanks_or_commas(separator):
    words = separator.join(["d_head=64,128", "dtype=BF16", "B_r=64", "B_c=64", "n_warps=4"])
    found = json.loads(invoke("space", words, "--json").stdout)
    space = Space(dtype="BF16", d_head=[64, 128], B_r=64, B_c=64, n_warps=4)
    assert found["n_configs"] == len(space)
    assert found["legal"] == [str(config) for config in space.legal("sm_90")]


def test_a_long_space_says_how_far_it_is(monkeypatch):
    monkeypatch.setattr("pyflash.ui.app._PATIENCE", 0.0)
    words = ["space", "dtype=BF16", "d_head=128", "B_r=64", "n_warps=4", "--json"]
    result = invoke(*words)
    n_configs = json.loads(result.stdout)["n_configs"]
    lines = result.stderr.splitlines()
    assert len(lines) == -(-n_configs // 256)
    for i, line in enumerate(lines):
        done = f"asking the rules of {n_configs:,} configs: {i * 256:,} of {n_configs:,}"
        assert line == done


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_what_takes_long_is_told_on_stderr(monkeypatch, seconds):
    monkeypatch.setattr("pyflash.ui.app._PATIENCE", 0.1)
    monkeypatch.setattr("pyflash.codegen.cache.entries", lambda: time.sleep(seconds) or [])
    result = invoke("cache", "--json")
    assert json.loads(result.stdout)["entries"] == []
    told = "reading every entry, to tell what is damaged\n"
    assert result.stderr == (told if seconds else "")


def test_what_takes_longer_is_told_again(monkeypatch, capsys):
    monkeypatch.setattr("pyflash.ui.app._PATIENCE", 0.1)
    monkeypatch.setattr("pyflash.ui.app._PATIENCE_AFTER", 0.2)
    with working("waiting"):
        time.sleep(1)
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "waiting"
    assert others
    assert all(re.fullmatch(r"waiting: \d s", line) for line in others)


def test_select_prints_the_choice_and_its_reason():
    result = invoke("select", "--device", "cpu", "--seqlen-q", "64", "--causal", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert parse(found["config"]).d_head >= 128  # more where another test loaded a library
    assert found["num_splits"] == 1
    assert "CPU" in found["reason"]
    assert_one_line(invoke("select", "--device", "cpu", "--d-head", "257"))
    for command in (["select"], ["emulate", BEST], ["compare"]):
        assert invoke(*command, "--d-head", "0").exit_code == 2


def test_info_says_what_is_here_and_what_is_missing(monkeypatch):
    monkeypatch.setenv("PYFLASH_ARCHS", "80")
    found = json.loads(invoke("info", "--json").stdout)
    assert found["versions"]["torch"]
    assert pyflash.__version__ in found["versions"]["pyflash"]
    (ops,) = (name for name in found["libraries"] if name.endswith("libpyflash_ops.so"))
    assert found["libraries"][ops] == "loaded"
    assert found["environment"]["PYFLASH_ARCHS"] == "80"
    assert not found["GPUs"] or "GPU" not in found["missing"]
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    assert "set CXX" in json.loads(invoke("info", "--json").stdout)["missing"]["C++"]


def test_cache_shows_and_prunes(monkeypatch, tmp_path):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))
    for name, age in (("old", 40), ("new", 1)):
        folder = tmp_path / "cache" / "objects" / name / "0123456789abcdef"
        folder.mkdir(parents=True)
        (folder / f"{name}.o").write_bytes(b"x" * 1000)
        used = time.time() - age * 86400
        os.utime(folder, (used, used))
    (tmp_path / "cache").chmod(0o700)
    shown = invoke("cache", "--json")
    assert shown.exit_code == 1  # they have no record
    listed = json.loads(shown.stdout)["entries"]
    assert {(e["kind"], e["name"], e["bytes"]) for e in listed} == {
        ("objects", "new", 1000), ("objects", "old", 1000),
    }  # fmt: skip
    assert "1.95 KiB" in invoke("cache").stdout
    would = json.loads(invoke("cache", "--prune", "--all", "--dry-run", "--json").stdout)
    assert len(would["entries"]) == 2
    gone = json.loads(invoke("cache", "--prune", "--older-than", "30d", "--json").stdout)
    assert [entry["name"] for entry in gone["entries"]] == ["old"]
    assert [path.name for path in (tmp_path / "cache").glob("objects/*/*/*")] == ["new.o"]
    assert invoke("cache", "--prune", "--bad").exit_code == 0
    assert json.loads(invoke("cache", "--json").stdout)["entries"] == []


@pytest.mark.parametrize(
    "options",
    [
        ["--all"],
        ["--prune", "--all", "--bad"],
        ["--prune", "--older-than", "soon"],
        ["--prune", "--keep", "much"],
        ["--kind", "rubbish"],
        ["--prune", "--kind", "rubbish"],
    ],
)
def test_cache_refuses_in_words(options):
    assert_one_line(invoke("cache", *options))


def test_numbers_are_whole_in_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    numbers = [123_456_789 + i for i in range(4)]
    show(Table.of("t", ("", *"abcd"), [("a long name of a row", *numbers)]))
    shown = capsys.readouterr().out
    for value in numbers:
        assert f"{value:,}" in shown


@pytest.mark.parametrize("width", [60, 80])
def test_a_comparison_cuts_no_number(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    found = compare(problem_of(4096), map(read, sorted(RECORDED.glob("*.csv"))), [], None)
    show(found)
    shown = capsys.readouterr().out
    for line in (*found.gemms, *found.sums):
        for cell in line_cells(line)[1:5]:
            assert cell in shown
    assert "…" not in shown


def test_a_report_hints_at_bank_conflicts(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    traffic = {"instructions": 4096, "bytes": 2_097_152, "ideal_wavefronts": 16_384}
    conflicted = SharedTraffic(
        **traffic, wavefronts=131_072, min_degree=8, mean_degree=8, max_degree=8
    )  # fmt: skip
    report = dataclasses.replace(_report(), sites={"K_s2r": {"shared_load": conflicted}})
    show(renderable(report))
    shown = capsys.readouterr().out
    assert "slow: bank conflicts make K_s2r load take up to 8.0" in " ".join(shown.split())
    assert "a swizzled layout avoids them" in " ".join(shown.split())
    for number in ("2,097,152", "131,072", "114,688"):
        assert number in shown
    swizzled = dataclasses.replace(report, config=BEST)
    assert "swizzled layout" not in hints(swizzled)[0]
    assert hints(_report()) == []


def _report() -> Report:
    """The report of a kernel that did nothing."""
    counts = Counts(*[0] * len(dataclasses.fields(Counts)))
    extents = {"batch": 1, "heads": 1, "heads_kv": 1, "softmax_scale": 0.1}
    return Report(
        config="(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles", problem=extents, order="ascending",
        seed=0, n_ctas=1, n_threads=128, smem_bytes=0, seconds=0.1, completed=True, sites={},
        counts=counts, findings=(),
    )  # fmt: skip


def test_a_long_emulation_says_how_long_it_takes(capsys):
    config = FlashForwardKernelConfig.parse(BEST)
    _emulating(config, 2 * 256 * 256)
    assert capsys.readouterr().err == ""
    _emulating(config, 2 * 8192 * 8192)
    assert f"emulating {BEST}, about 66 s" in " ".join(capsys.readouterr().err.split())
