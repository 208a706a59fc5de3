"""The first page: short, and all of it runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from support.markdown import ROOT, blocks_of, lines_too_long, prose_of, run_python, session
from typer.testing import CliRunner

from pyflash.cli import app

README = Path("README.md")


def test_it_is_short():
    assert len(prose_of(README).split()) <= 700
    assert lines_too_long(README) == []


def test_a_screen_comes_before_the_first_heading():
    """What it is, why, how to install it, code, and the picture."""
    screen = (ROOT / README).read_text().partition("\n## ")[0]
    assert len(re.findall("^- ", screen, re.M)) == 3
    languages = [b.language for b in blocks_of(README)]
    assert languages == ["sh", "sh", "python"]
    install, _, code = blocks_of(README)
    assert (len(install.text.splitlines()), len(code.text.split("\n\n")[-1].splitlines())) == (3, 3)
    assert len([line for line in code.text.splitlines() if line]) == 7
    assert "docs/pictures/speed.svg" in screen


def test_the_install_runs_as_it_stands(tmp_path):
    """`make` prints what it would run: `make demo` of a checkout is what this test is part of."""
    install, *_ = blocks_of(README)
    source = tmp_path / "source"
    source.mkdir()
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, source)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a", "-C", str(source)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    outside_make = {name: value for name, value in os.environ.items() if name != "MAKELEVEL"}
    ran = subprocess.run(
        ["sh", "-e", "-c", install.text],
        cwd=tmp_path,
        env=outside_make | {"URL": str(source), "MAKEFLAGS": "n"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == ".venv/bin/pyflash demo"


def test_a_config_of_ones_own_is_emulated_as_it_stands():
    _, own, _ = blocks_of(README)
    folder, name, *words = shlex.split(own.text.replace("/pyflash ", " pyflash ", 1))
    assert (folder, name) == (".venv/bin", "pyflash")
    ran = CliRunner().invoke(app, words)
    assert (ran.exit_code, "nothing wrong found" in ran.stdout) == (0, True), ran.output


def test_the_code_runs_as_it_stands():
    ran = run_python(session(README), README)
    assert ran.returncode == 0, ran.stderr
    assert "Violation(rule=" in ran.stdout
    assert "nothing wrong found" in ran.stdout
