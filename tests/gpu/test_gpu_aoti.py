"""Packages of AOTInductor, where a process that loads one is another than made it."""

import pytest
from support.aoti import run

pytestmark = pytest.mark.gpu


def test_a_package_of_aotinductor_runs_in_another_process(tmp_path):
    made = run("compile", tmp_path / "model.pt2", "--device", "cuda")
    assert made.returncode == 0, made.stderr
    ran = run("run", tmp_path / "model.pt2", "--device", "cuda")
    if ran.returncode < 0:  # by a signal
        skip_if_packages_without_pyflash_end_so_too(tmp_path / "plain.pt2", ran.returncode)
    assert ran.returncode == 0, ran.stderr


def skip_if_packages_without_pyflash_end_so_too(package, status):
    """torch's loader ends in std::regex where the linker takes libstdc++ statically into packages:
    each then brings facets of its own to the locale that torch has made."""
    options = ("--device", "cuda", "--without-pyflash")
    made = run("compile", package, *options)
    assert made.returncode == 0, made.stderr
    if run("run", package, *options).returncode == status:
        pytest.skip("a package of a model without pyflash ends the process that loads it, too")
