"""Programs that run a kernel's own code on the CPU, with errors planted in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.headers import ROOT, includes

from pyflash.third_party import cuda


def planted_program(
    folder: Path, kernel: str, source: str, errors: Iterable[tuple[str, str]]
) -> Path:
    """Builds tests/support/<source> in `folder` with cute_kernels/<kernel>, in which each error, a
    place and what stands there instead, is planted. Skips without CUDA's headers."""
    try:
        folders = cuda.include_dirs()
    except cuda.CudaError as error:
        pytest.skip(str(error))
    text = (ROOT / "cute_kernels" / kernel).read_text()
    for right, wrong in errors:
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    copy = folder / "cute_kernels" / kernel
    copy.parent.mkdir(parents=True)
    copy.write_text(text)
    system = [option for of in folders for option in ("-isystem", str(of))]
    program = (folder / source).with_suffix("")
    command = ["g++", "-std=c++20", "-O1", "-pthread", f"-I{folder}", *includes(), *system]
    subprocess.run([*command, ROOT / "tests/support" / source, "-o", program], check=True)
    return program


def printed(program: Path, lines: Iterable[str], error: int) -> list[str]:
    """The lines that the program prints for these, with the error of a number; 0: with none."""
    done = subprocess.run(
        [program],
        input="\n".join(lines),
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PLANTED": str(error)},
    )
    return done.stdout.splitlines()
