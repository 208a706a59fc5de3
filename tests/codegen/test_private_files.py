"""What is written to the cache is its user's alone, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_compiler import compiled, fake_compiler, sources
from support.other_user import NOBODY, as_user, needs_root

from pyflash.codegen import build, kernels
from pyflash.codegen.cache_dir import cache_dir
from pyflash.codegen.cache_locks import locked
from pyflash.codegen.compilation import Compilation, compile_all
from pyflash.codegen.config_header import include_dir
from pyflash.codegen.kernel_libraries import library_file, user_dir, write_record
from pyflash.codegen.linking import link
from pyflash.config import Arch, parse

UMASKS = (0o000, 0o002, 0o022, 0o077)
CONFIG = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"

# Makes its output, and notes the modes of what is there meanwhile.
_NOSY_COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
echo made > "$out"
stat -c '%a %n' "$out" "$(dirname "$out")" >> "$MODES"
case "$TMPDIR" in *pyflash-ninja-*) stat -c '%a %n' "$TMPDIR" "$TMPDIR"/* >> "$MODES";; esac
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(home / ".cache" / "pyflash"))
    return home


def write_lock(_) -> None:
    with locked():
        pass


def write_failed_object(compiler) -> None:
    (c,) = sources(compiler, 1)
    broken = Compilation(c.label, c.stem, c.text, type(compiler)(("false",), (), (), "", ".cpp"))
    assert compile_all([broken], "broken") == [broken]


def write_library(compiler) -> None:
    link(cache_dir() / "emulated" / "key" / "x.so", [compiled(compiler)], [])


def write_kernel_library(compiler) -> None:
    path = library_file(user_dir(build.abi(), "x"), "x")
    write_record(path, {"configs": {}})
    link(path, [compiled(compiler)], [], {"abi": build.abi()})


def write_failed_link(compiler) -> None:
    c = compiled(compiler)
    os.environ["CXX"] = "false"
    with pytest.raises(RuntimeError, match=r"link\.log$"):
        link(cache_dir() / "emulated" / "key" / "x.so", [c], [])


def write_row_of_cubin(compiler) -> None:
    kernels._describe(compiled(compiler), parse(CONFIG), Arch.of(90))


WRITERS: dict[str, Callable[..., object]] = {
    "lock": write_lock,
    "object": compiled,
    "failed object": write_failed_object,
    "library": write_library,
    "kernel library": write_kernel_library,
    "failed link": write_failed_link,
    "row of a cubin": write_row_of_cubin,
    "header": lambda _: include_dir(),
}


@pytest.mark.parametrize("umask", UMASKS, ids="{:03o}".format)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_is_its_users_alone(home, compiler, use_umask, umask, writer):
    use_umask(umask)
    WRITERS[writer](compiler)
    written = [home, *home.rglob("*")]
    assert len(written) > 2
    assert {str(p): oct(p.lstat().st_mode) for p in written if p.lstat().st_mode & 0o077} == {}


@pytest.mark.parametrize("umask", UMASKS, ids="{:03o}".format)
def test_so_is_what_is_half_written(tmp_path, monkeypatch, use_umask, umask):
    """By modes that a compiler and a linker see while they run."""
    script = tmp_path / "nosy"
    script.write_text(_NOSY_COMPILER)
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("MODES", str(tmp_path / "modes"))
    use_umask(umask)
    nosy = type(fake_compiler(tmp_path))((str(script),), (), (), "nosy", ".cpp")
    write_library(nosy)
    modes = dict(reversed(line.split()) for line in (tmp_path / "modes").read_text().splitlines())
    assert {".o", ".so"} <= {Path(name).suffix for name in modes}
    assert any("pyflash-ninja-" in name for name in modes)
    assert {n: m for n, m in modes.items() if "ninja" not in n and int(m, 8) & 0o077} == {}
    assert {
        n: m
        for n, m in modes.items()
        if n.rpartition("-ninja-")[1] and m[-2:] != "00" and Path(n).is_dir()
    } == {}


@pytest.mark.parametrize("umask", UMASKS, ids="{:03o}".format)
def test_what_is_built_elsewhere_is_as_the_umask_says(tmp_path, compiler, use_umask, umask):
    """Root installs what all users load."""
    use_umask(umask)
    (tmp_path / "plain").touch()
    path = tmp_path / "lib" / "x.so"
    write_record(path, {"configs": {}})
    link(path, [compiled(compiler)], [])
    for written in (path, path.with_suffix(".json")):
        assert written.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert path.parent.stat().st_mode & 0o777 == 0o777 & ~umask


@needs_root
@pytest.mark.parametrize("umask", UMASKS, ids="{:03o}".format)
def test_another_user_can_write_nothing(open_folder, monkeypatch, compiler, use_umask, umask):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(open_folder / "cache"))
    use_umask(umask)
    for writer in WRITERS.values():
        if writer is not write_failed_link:
            writer(compiler)
    open_folder.joinpath("cache").chmod(0o755)  # its user lets others in
    paths = [open_folder / "cache", *(open_folder / "cache").rglob("*")]

    def writable() -> list[str]:
        return [str(path) for path in paths if os.access(path, os.W_OK)]

    assert as_user(NOBODY, writable) == "[]"
