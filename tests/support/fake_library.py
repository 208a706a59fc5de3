"""Builds fake_kernel_library.cpp, a kernel library without kernels."""

import subprocess
from pathlib import Path

from support.headers import ROOT, includes

from pyflash.codegen.build import abi
from pyflash.codegen.seal import seal


def build_fake_library(folder: Path, name: str = "fake", *macros: str) -> Path:
    library = folder / f"libpyflash_kernels-{name}.so"
    source = ROOT / "tests/support/fake_kernel_library.cpp"
    options = ["-std=c++20", "-shared", "-fPIC", *includes(), *(f"-D{m}" for m in macros)]
    subprocess.run(["g++", *options, str(source), "-o", str(library)], check=True)
    seal(library, {"abi": abi()})
    return library
