"""What tests of builds share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_compiler import fake_compiler

from pyflash.codegen.compilation import Compiler


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A compiler of a few milliseconds, by which libraries are linked, too."""
    compiler = fake_compiler(tmp_path)
    monkeypatch.setenv("CXX", compiler.command[0])
    return compiler
