"""Every command for a config of every family, with each of its outputs and flags.

Commands, their options and the families are those that there are: a new one joins by itself, where
its parameters have names that are known here. A command ends with 0, or with a refusal that is
listed here.
"""

from __future__ import annotations

import csv
import functools
import inspect
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import typer
from support.bench_records import run_of_four
from support.pages import check_page
from support.profiles import RECORDED
from typer.testing import CliRunner

from pyflash.bench import cli as bench_cli
from pyflash.bench import measure
from pyflash.bench.contenders import Contender
from pyflash.bench.measure import Result
from pyflash.cli import app
from pyflash.config import FAMILIES, Family, KernelConfig
from pyflash.inspect import diff, inspection, sass
from pyflash.op.selection import Problem

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="commands measure on the GPU")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# It takes nothing, and compiles for minutes: test_demo.py.
WITHOUT = {"demo"}
FILES = sorted(map(str, RECORDED.glob("*.csv")))


@functools.cache
def config_of(family: Family) -> KernelConfig:
    """The one that is least work, of those that selection prefers."""
    legal = [config for config in family.ranked if config.is_legal("sm_90")]
    return min(legal, key=lambda config: (config.smem_bytes, str(config)))


def other(config: KernelConfig) -> KernelConfig:
    """A config of the next family."""
    return config_of(FAMILIES[(FAMILIES.index(config.family) + 1) % len(FAMILIES)])


def space_of(config: KernelConfig) -> list[str]:
    values = {name: getattr(config, name) for name in config.field_types()}
    words = {n: getattr(v, "name", str(v).lower()) for n, v in values.items()}
    return [config.family.name, *(f"{name}={word}" for name, word in words.items())]


def problem_of(config: KernelConfig) -> str:
    return f"{config.dtype.name.lower()},batch=1,heads=2,seqlen=64,d_head={config.d_head}"


EMPTY: list[str] = []
# What a parameter of this name is given, in every command that has it.
GIVEN: dict[str, Callable[[KernelConfig], list[str]]] = {
    "config": lambda config: [str(config)],
    "configs": lambda config: [str(config)],
    "first": lambda config: [str(config)],
    "second": lambda config: [str(other(config))],
    "values": space_of,
    "space": lambda config: [" ".join(space_of(config))],
    "problem": lambda config: [problem_of(config)],
    "dtype": lambda config: [config.dtype.name.lower()],
    "d_head": lambda config: [str(config.d_head)],
    "batch": lambda _: ["1"],
    "heads": lambda _: ["2"],
    "seqlen": lambda _: ["64"],
    "seqlen_q": lambda _: ["64"],
    "seqlen_k": lambda _: ["64"],
    "tokens": lambda _: ["64"],
    "samples": lambda _: ["2"],
    "arch": lambda _: ["sm_90"],
    "device": lambda _: ["cpu"],
}
# By these a command is known to be about a config, or about a problem.
OF_A_FAMILY = {"config", "configs", "first", "values", "problem", "dtype", "d_head"}
# Files that are read; other paths are outputs.
INPUTS = {"read", "journal", "library", "paths"}
# What parameters of a command are given instead, in each way to run it; True: a flag.
Way = Callable[[KernelConfig, Path], dict[str, list[str] | bool]]
_RECORDED = {"d_head": ["128"], "dtype": ["bf16"], "heads": ["16"], "tokens": ["16384"]}
WAYS: dict[str, list[Way]] = {
    "build": [
        lambda *_: {"arch": []},
        lambda *_: {"list_configs": True},
        lambda *_: {"dry_run": True},
        lambda _, folder: {"emit_to": [str(folder)]},
    ],
    "bench": [
        lambda *_: {"backend": ["none"]},
        # Beside --read other options ask for some of the records: here for all.
        lambda _, folder: dict.fromkeys(GIVEN, EMPTY) | {"read": [str(records_file(folder))]},
    ],
    "tune": [
        lambda *_: {"config": [], "device": []},
        lambda *_: {"config": [], "dry_run": True},
        lambda config, folder: {"config": [], "read": [str(journal_file(folder, config))]},
    ],
    "ladder": [lambda *_: {"part": ["speed"]}],  # other parts compile eight configs
    "compare": [
        lambda *_: _RECORDED | {"config": [], "paths": FILES, "seqlen": ["4096"]},
        lambda *_: {"config": [], "paths": FILES[:2], "seqlen": []},
        lambda *_: {"cutlass_profiler": True},
    ],
}
# What a command says whose line has all of these words, if it does not end with 0 here.
REFUSALS: dict[tuple[str, ...], str] = {
    ("build",): r"no architecture to build for: this machine has no GPU",
    **{
        ("build", option): rf"(?=.*{option} ).*exclude each other"
        for option in ("--ops", "--list", "--emit-to")
    },
    ("build", "--dry-run"): "--dry-run .*exclude each other|no architecture to build for",
    ("tune",): "no GPU to tune for",
    ("tune", "--read", "--install"): "--read .*no --install",
    ("tune", "--read", "--dry-run"): "--read .*no --dry-run",
    ("tune", "--dry-run", "--install"): "--dry-run .*no --install",
    ("tune", "--dry-run", "--html"): "--dry-run .*no --html",
    ("tune", "--dry-run", "--picture"): "--dry-run .*no --picture",
    ("profile",): "no CUDA GPU|ncu not found",
    ("registers",): "no such kernel library; to build the default one: pyflash build",
    ("diff",): "nvcc|cuobjdump",
    ("bench", "--out", "--read"): "--read .*no --out",
    ("bench", "--host", "--read"): "--read .*no --host",
    ("bench", "--decode", "--read"): "none of its 4 records fits --decode",
    ("bench", "--host"): "--host has no .*its calls are fixed",
    ("bench", "--roofline"): "no roofline: the peak rates of .* are not known",
    ("bench", "--format", "markdown"): "no figures of pyflash and PyTorch flash",
    ("compare", "--cutlass-profiler"): "no GPU|takes one path",
    ("compare", "--csv"): "--csv .*--cutlass-profiler",
    ("cache", "--all"): "go with --prune",
    ("cache", "--bad"): "go with --prune",
    ("cache", "--dry-run"): "go with --prune",
}


def records_file(folder: Path) -> Path:
    path = folder / "records.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in run_of_four()))
    return path


def journal_file(folder: Path, config: KernelConfig) -> Path:
    """The journal of a run on a GPU that is not here."""
    path = folder / "journal.jsonl"
    measured = {"problem": problem_of(config), "config": str(config), "features": "plain"}
    records = [
        {"kind": "run", "gpu": "NVIDIA H200", "sm": 90, "refused": {"smem_limit": 3}},
        {"kind": "sample", **measured, "rung": 2, "seconds": 1e-5},
        {"kind": "winner", **measured, "seconds": 1e-5, "runners_up": {}},
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


@dataclass(frozen=True)
class Case:
    command: str
    family: Family | None  # None: the command is about neither a config nor a problem
    way: int
    words: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # options, each of which names a file to write

    def __str__(self) -> str:
        family = [str(self.family)] if self.family else []
        return "-".join([self.command, *family, str(self.way), *self.words, *self.files])


def cases() -> Iterator[Case]:
    for command, parsed in COMMANDS.items():
        names = {parameter.name for parameter in parsed.params}
        families = FAMILIES if names & OF_A_FAMILY else (None,)
        for family in families if command not in WITHOUT else ():
            for way in range(len(WAYS.get(command, [None]))):
                for words, files in outputs_of(command):
                    yield Case(command, family, way, words, files)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_words_for_values_and_examples_that_parse(command):
    """Every command is in the overview, and says of what it takes more than a type."""
    overview = CliRunner().invoke(app, ["--help"]).stdout
    assert f"\n  {command} " in overview
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    shown = result.stdout.split("Examples:\n")[1]
    parsed = COMMANDS[command]
    for parameter in parsed.params:
        assert parameter.help, f"{parameter.name} says nothing"
        is_flag = getattr(parameter, "is_flag", False)
        assert parameter.metavar or is_flag, f"{parameter.name} has no word for its value"
    lines = shown.replace("\\\n", " ").strip().splitlines()
    for line in lines:
        name, first, *rest = shlex.split(line)
        assert (name, first) == ("pyflash", command)
        parsed.make_context(command, rest)  # raises where it does not parse


def outputs_of(command: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(words, options): nothing, each flag by itself, each file by itself and, where there is
    --json, beside it, each format."""
    parameters = COMMANDS[command].params
    types = annotations(command)
    flags = [p.opts[0] for p in parameters if getattr(p, "is_flag", False)]
    yield (), ()
    yield from (((flag,), ()) for flag in flags)
    for p in parameters:
        if takes_path(types[p.name]) and p.name not in INPUTS:
            yield (), (p.opts[0],)
            if "--json" in flags:
                yield ("--json",), (p.opts[0],)
        if p.opts[0] == "--format":
            yield from (((p.opts[0], form), ()) for form in bench_cli.FORMATS)


def annotations(command: str) -> dict[str, Any]:
    """The types of the parameters, as Python has them."""
    (callback,) = (
        registered.callback
        for room in app.registered_groups
        for registered in room.typer_instance.registered_commands
        if registered.name == command
    )
    signature = inspect.signature(callback, eval_str=True)
    return {name: parameter.annotation for name, parameter in signature.parameters.items()}


def takes_path(annotation: Any) -> bool:
    return annotation is Path or any(map(takes_path, get_args(annotation)))


def line_of(case: Case, folder: Path) -> list[str]:
    config = config_of(case.family or FAMILIES[0])
    ways = WAYS.get(case.command)
    instead = ways[case.way](config, folder) if ways else {}
    line = [case.command]
    for parameter in COMMANDS[case.command].params:
        give = GIVEN.get(parameter.name, lambda _: [])
        values = instead.get(parameter.name, give(config))
        assert values or not parameter.required, f"say in GIVEN what {parameter.name} is given"
        if values is True:
            line.append(parameter.opts[0])
        elif parameter.param_type_name == "option":
            line += [word for value in values for word in (parameter.opts[0], value)]
        else:
            line += values
    for option in case.files:
        line += [option, str(written(case.command, option, folder))]
    return [*line, *case.words]


def written(command: str, option: str, folder: Path) -> Path:
    """What an option is given that names a file, or a folder."""
    (parameter,) = (p for p in COMMANDS[command].params if option in p.opts)
    if parameter.metavar == "DIR":
        return folder / option.strip("-")
    suffix = {"--html": ".html", "--csv": ".csv", "--out": ".jsonl"}.get(option, ".svg")
    return folder / f"written{suffix}"


@pytest.fixture(autouse=True)
def _each_is_computed_once(monkeypatch):
    """What several commands ask of one config, each time a second or two."""
    for module in (inspection, diff):
        monkeypatch.setattr(module, "emulated_traffic", _emulated)
    monkeypatch.setattr(sass, "disassemble", _disassembled)
    monkeypatch.setattr(measure, "run", _measured)


_emulated = functools.cache(inspection.emulated_traffic)
_disassembled = functools.cache(sass.disassemble)
_run, _runs = measure.run, {}


def _measured(problem: Problem, contenders: list[Contender], *others: Any) -> list[Result]:
    key = (repr(problem), *(contender.name for contender in contenders), *others)
    if key not in _runs:
        _runs[key] = _run(problem, contenders, *others)
    return _runs[key]


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_a_command_does_what_it_says_or_refuses_in_words(case, tmp_path, monkeypatch):
    """Pitfall 31: a command that works for one family only."""
    if case.command == "cache":
        monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))
    line = line_of(case, tmp_path)
    result = CliRunner().invoke(app, line)
    assert isinstance(result.exception, SystemExit | None), result.exception
    if result.exit_code != 0:
        check_refusal(line, result)
        return
    if "--json" in line or line[-2:] == ["--format", "json"]:
        check_json(result.stdout)
    for option in case.files:
        path = written(case.command, option, tmp_path)
        if path.is_dir():
            assert list(path.iterdir())
        else:
            check_file(path)


def check_refusal(line: list[str], result: Any) -> None:
    """The last line, as the entry says that has most words of the command line."""
    assert result.exit_code in (1, 2), result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: " if result.exit_code == 1 else "Error: "), result.stderr
    matching = [words for words in REFUSALS if set(words) <= set(line)]
    assert matching, f"{line} is refused: {result.stderr}"
    assert re.search(REFUSALS[max(matching, key=len)], last), last


def check_json(text: str) -> None:
    """One value, or one a line."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        assert [json.loads(line) for line in text.splitlines()]


def check_file(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".html":
        check_page(text)
    elif path.suffix == ".csv":
        head, *rows = csv.reader(text.splitlines())
        assert rows
        assert {len(row) for row in rows} == {len(head)}
    elif path.suffix == ".jsonl":
        check_json(text)
    else:
        ElementTree.fromstring(text)
