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
from support.command_lines import (
    GIVEN,
    INPUTS,
    OF_A_FAMILY,
    PROGRESS,
    REFUSALS,
    WAYS,
    config_of,
)
from support.pages import check_page
from typer.testing import CliRunner

from pyflash.bench import measure
from pyflash.bench.contenders import Contender
from pyflash.bench.measure import Result
from pyflash.bench.options import FORMATS
from pyflash.cli import app
from pyflash.config import FAMILIES, Family
from pyflash.inspect import diff, inspection, sass
from pyflash.op.selection import Problem

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="commands measure on the GPU")


def commands_of(group: Any, before: str = "") -> dict[str, Any]:
    """By what is typed, such as "variant show"."""
    found = {}
    for name, command in group.commands.items():
        typed = f"{before}{name}"
        is_group = hasattr(command, "commands")
        found |= commands_of(command, f"{typed} ") if is_group else {typed: command}
    return found


COMMANDS = commands_of(typer.main.get_command(app))
# One compiles for minutes, the other serves until it is stopped: test_demo.py, test_explore.py.
WITHOUT = {"demo", "explore"}


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


def test_an_option_is_called_what_it_is_called_in_the_code():
    """typer 0.27 calls it by its metavar, where that is its name in capitals."""
    for command, found in COMMANDS.items():
        for option in (p for p in found.params if p.param_type_name == "option"):
            flags = [*option.opts, *option.secondary_opts]
            assert all(re.fullmatch("--?[a-z0-9-]+", flag) for flag in flags), (command, flags)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_words_for_values_and_examples_that_parse(command):
    """Every command is in the overview, and says of what it takes more than a type."""
    overview = CliRunner().invoke(app, ["--help"]).stdout
    typed = command.split()
    (summary,) = (line for line in overview.splitlines() if line.startswith(f"  {typed[0]} "))
    assert not summary.endswith("..."), "what the terminal has no room for is cut"
    result = CliRunner().invoke(app, [*typed, "--help"])
    assert result.exit_code == 0
    shown = result.stdout.split("Examples:\n")[1]
    parsed = COMMANDS[command]
    assert any("--json" in parameter.opts for parameter in parsed.params)
    for parameter in parsed.params:
        assert parameter.help, f"{parameter.name} says nothing"
        is_flag = getattr(parameter, "is_flag", False)
        assert parameter.metavar or is_flag, f"{parameter.name} has no word for its value"
    lines = shown.replace("\\\n", " ").strip().splitlines()
    for line in lines:
        words = shlex.split(line)
        assert words[: 1 + len(typed)] == ["pyflash", *typed]
        parsed.make_context(command, words[1 + len(typed) :])  # raises where it does not parse


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
            yield from (((p.opts[0], form), ()) for form in FORMATS)


def annotations(command: str) -> dict[str, Any]:
    """The types of the parameters, as Python has them."""
    callback = callbacks_of(app)[command]
    signature = inspect.signature(callback, eval_str=True)
    return {name: parameter.annotation for name, parameter in signature.parameters.items()}


def callbacks_of(room: typer.Typer, before: str = "") -> dict[str, Callable[..., Any]]:
    found = {f"{before}{one.name}": one.callback for one in room.registered_commands}
    for group in room.registered_groups:
        prefix = f"{before}{group.name} " if isinstance(group.name, str) else before
        found |= callbacks_of(group.typer_instance, prefix)
    return found


def takes_path(annotation: Any) -> bool:
    return annotation is Path or any(map(takes_path, get_args(annotation)))


def line_of(case: Case, folder: Path) -> list[str]:
    config = config_of(case.family or FAMILIES[0])
    ways = WAYS.get(case.command)
    instead = ways[case.way](config, folder) if ways else {}
    line = case.command.split()
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
    suffixes = {"--html": ".html", "--csv": ".csv", "--out": ".jsonl", "--header": ".h"}
    suffix = suffixes.get(option, ".svg")
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
    """Pitfall 31: a command that works for one family only. On stderr are an error or progress, and
    nothing else."""
    if case.command == "cache":
        monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "1000")  # no line on stderr is two
    line = line_of(case, tmp_path)
    result = CliRunner().invoke(app, line)
    assert isinstance(result.exception, SystemExit | None), result.exception
    if result.exit_code != 0:
        check_refusal(line, result)
        return
    for said in result.stderr.splitlines():
        assert re.fullmatch(PROGRESS, said), said
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
    elif path.suffix == ".h":
        assert text.startswith("#pragma once")
    else:
        ElementTree.fromstring(text)
