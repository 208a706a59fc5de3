"""What a type checker sees of the package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyflash

pytest.importorskip("mypy")

ROOT = Path(__file__).resolve().parents[2]
SNIPPET = ROOT / "tests" / "support" / "user_snippet.py"


def test_the_snippet_uses_the_whole_public_api():
    words = set(re.findall(r"\w+", SNIPPET.read_text()))
    assert {*pyflash.__all__, "__version__"} - words == set()


def test_a_users_program_is_typed(tmp_path):
    """Strictly, with the overloads: `assert_type` is in it, and errors that are to be seen. As of
    an installed package, what is inside of pyflash is not complained of."""
    options = ["--strict", "--follow-imports", "silent", "--cache-dir", str(tmp_path)]
    command = [sys.executable, "-m", "mypy", *options, SNIPPET]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.stdout == "Success: no issues found in 1 source file\n", result.stdout
