"""Links lead somewhere, code runs, and guides stay short and true without a date."""

from __future__ import annotations

import ast
import doctest
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
from support.markdown import (
    GUIDES,
    ROOT,
    anchors_of,
    blocks_of,
    lines_too_long,
    links_of,
    markdown_files,
    prose_of,
    run_python,
    session,
)

from pyflash.cli import app

FILES = markdown_files()
README = Path("README.md")  # test_readme.py runs it
COMMANDS = typer.main.get_command(app)
of_every_file = pytest.mark.parametrize("path", FILES, ids=str)
of_every_guide = pytest.mark.parametrize(
    "path", [path for path in FILES if str(path.parent) in GUIDES], ids=str
)
of_every_session = pytest.mark.parametrize(
    "path", [path for path in FILES if session(path).strip() and path != README], ids=str
)


def is_external(target: str) -> bool:
    return bool(re.match(r"[a-z]+:", target))


@of_every_file
def test_links_lead_somewhere(path):
    broken = []
    for target, line in links_of(path):
        name, _, anchor = target.partition("#")
        if is_external(target):
            continue
        file = (ROOT / path.parent / name).resolve() if name else ROOT / path
        if not file.exists():
            broken.append(f"{path}:{line}: {target}: no such file")
        elif anchor and anchor not in anchors_of(file.relative_to(ROOT)):
            broken.append(f"{path}:{line}: {target}: no such heading")
    assert not broken


@of_every_file
def test_every_block_names_its_language(path):
    known = {"python", "pycon", "sh", "text", "cpp", "json"}
    assert [b.line for b in blocks_of(path) if b.language not in known] == []


@of_every_file
def test_python_parses(path):
    for block in blocks_of(path):
        if block.language == "python":
            ast.parse("\n" * block.line + block.text, str(path))


@of_every_session
def test_python_runs_on_the_cpu(path):
    ran = run_python(session(path), path)
    assert ran.returncode == 0, ran.stderr


def sessions_at_the_prompt() -> list[tuple[Path, int, str]]:
    return [
        (path, block.line, block.text)
        for path in FILES
        for block in blocks_of(path)
        if block.language == "pycon"
    ]


@pytest.mark.parametrize(("path", "line", "text"), sessions_at_the_prompt(), ids=str)
def test_what_is_shown_at_the_prompt_is_printed(path, line, text):
    test = doctest.DocTestParser().get_doctest(text, {}, str(path), str(path), line)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


def commands_of(text: str) -> list[list[str]]:
    """The words of each command, without comments, variables' values and redirections."""
    joined = text.replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        for part in re.split(r" && | \| ", line.split(" > ")[0]):
            if words := shlex.split(part, comments=True):
                found.append(words)
    return found


def shell_commands() -> list[tuple[Path, list[str]]]:
    return [
        (path, words)
        for path in FILES
        for block in blocks_of(path)
        if block.language == "sh"
        for words in commands_of(block.text)
    ]


@pytest.mark.parametrize(
    "words",
    {shlex.join(words): words for _, words in shell_commands() if words[0] == "pyflash"}.values(),
    ids=shlex.join,
)
def test_commands_parse(words):
    """Their options exist and take such values; nothing runs."""
    context = typer.Context(COMMANDS, info_name="pyflash")
    if words[1].startswith("--"):
        assert words[1] in {name for o in COMMANDS.params for name in o.opts} | {"--help"}
        return
    assert words[1] in COMMANDS.commands
    COMMANDS.commands[words[1]].make_context(words[1], words[2:], parent=context)


def test_make_targets_and_modules_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = {t for line in re.findall(r"^\.PHONY: (.*)$", makefile, re.M) for t in line.split()}
    asked = [words for _, words in shell_commands()]
    for words in asked:
        if words[0] == "make":
            assert {w for w in words[1:] if "=" not in w} <= targets, words
        if words[:2] == ["python", "-m"]:
            place = ROOT / words[2].replace(".", "/")
            is_there = place.with_suffix(".py").exists() or (place / "__main__.py").exists()
            is_there |= words[2].startswith("support.") or words[2] in ("pytest", "pip", "venv")
            assert is_there, words


@of_every_guide
def test_guides_are_short_and_hold_without_a_date(path):
    assert len((ROOT / path).read_text().splitlines()) <= 150
    assert lines_too_long(path) == []
    prose = re.sub(r"\]\([^)]*\)", "]", prose_of(path))  # without the targets of links
    dated = re.findall(r"\b20\d\d-\d\d\b|h200-[\w-]+(?:\.jsonl)?", prose)
    assert not dated, "dates and runs belong into docs/experiments"


def test_every_page_of_docs_is_reached_from_the_readme():
    reached, todo = set(), [Path("README.md")]
    while todo:
        path = todo.pop()
        if path in reached:
            continue
        reached.add(path)
        for target, _ in links_of(path):
            name = target.partition("#")[0]
            if name.endswith(".md") and not is_external(target):
                todo.append((ROOT / path.parent / name).resolve().relative_to(ROOT))
    assert set(FILES) - reached == set()


TEXT = (".py", ".h", ".cuh", ".cu", ".cpp", ".toml", ".in", ".yml", "Makefile")


def test_every_page_of_docs_is_in_the_site():
    site = (ROOT / "docs/site/mkdocs.yml").read_text().partition("\nnav:")[2]
    named = re.findall(r"- ([\w/.-]+\.md)$", site, re.M)
    made = {name for name in named if name.startswith("reference/")}  # by docs/site/hooks.py
    pages = {str(path.relative_to("docs")) for path in FILES if path.parts[0] == "docs"}
    assert sorted(set(named) - made) == sorted(pages)
    assert len(named) == len(set(named))


def test_docs_that_code_names_exist():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split() or [
        str(p.relative_to(ROOT))
        for top in ("pyflash", "codegen", "cute_kernels", "tests")
        for p in (ROOT / top).rglob("*")
    ]
    broken = [
        f"{name}: {named}"
        for name in tracked
        if name.endswith(TEXT) and (ROOT / name).exists()
        for named in re.findall(r"(?<![\w/])docs/[\w./-]+\.\w+", (ROOT / name).read_text())
        if not (ROOT / named).exists()
    ]
    assert not broken
