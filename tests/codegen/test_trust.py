"""What a process loads from the cache, nobody but its user, or root, can have written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_compiler import compiled
from support.fake_library import build_fake_library
from support.headers import ROOT
from support.other_user import NOBODY, as_user, needs_root

import pyflash
from pyflash.codegen import build, kernel_libraries, seal
from pyflash.codegen.cache_dir import CacheError, cache_dir
from pyflash.codegen.cache_locks import locked
from pyflash.codegen.compilation import compile_all
from pyflash.codegen.config_header import include_dir
from pyflash.codegen.kernel_libraries import library_file, user_dir, write_record
from pyflash.compare import generated
from pyflash.emulator import machine
from pyflash.inspect import native
from pyflash.op import library

CONFIG = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"
N_FAKE_CONFIGS, N_OTHER_CONFIGS = 11, 12


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(home / ".cache" / "pyflash"))
    monkeypatch.setenv("PYFLASH_CONFIG_DIR", str(home / ".config" / "pyflash"))
    return home


@pytest.fixture(scope="module")
def fakes(tmp_path_factory) -> tuple[Path, Path]:
    """Two kernel libraries, of 11 and of 12 configs."""
    return (
        build_fake_library(tmp_path_factory.mktemp("fake")),
        build_fake_library(tmp_path_factory.mktemp("other"), "fake", "HOPPER"),
    )


# What is loaded


def put_sealed(*parts: str) -> Path:
    path = cache_dir().joinpath(*parts)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"never mapped")
    seal.seal(path, {"abi": build.abi()})
    return path


def put_cubin() -> Path:
    path = cache_dir() / "objects" / "cubin_x" / "key" / "cubin_x.o"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x7fELF")
    row = {"config": CONFIG, "arch": 90, "kernels": {"plain": "_Zplain"}}
    path.with_suffix(".row.json").write_text(json.dumps(row))
    return path


# How each is put into the cache, how it is loaded, and the suffix of the file that is attacked.
LOADERS: dict[str, tuple[Callable[[], Path], Callable[[Path], object], str]] = {
    "kernel library": (
        lambda: put_sealed("kernels", "1", "x", "libpyflash_kernels-x.so"), pyflash.load, ".so"
    ),
    "kernel library built on demand": (
        lambda: put_sealed("jit", "key", "libpyflash_kernels-x.so"), pyflash.load, ".so"
    ),
    "cubin": (put_cubin, library.load_cubin, ".o"),
    "row of a cubin": (put_cubin, library.load_cubin, ".row.json"),
    "kernel for the CPU": (lambda: put_sealed("emulated", "key", "x.so"), machine._load, ".so"),
    "native module": (
        lambda: put_sealed("native", "key", "x.so"), lambda path: native.load_module("x", path),
        ".so",
    ),
    "GEMM": (lambda: put_sealed("gemms", "key", "x.so"), generated._load, ".so"),
}  # fmt: skip


def by_a_link(path: Path) -> None:
    real = path.with_name("real")
    path.rename(real)
    path.symlink_to(real)


# How others get a say in a file or folder, and what the refusal tells.
PLANTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "others": (lambda path: path.chmod(path.stat().st_mode | 0o002), "`chmod -R go-w {}`"),
    "the group": (lambda path: path.chmod(path.stat().st_mode | 0o020), "`chmod -R go-w {}`"),
    "its owner": (lambda path: os.chown(path, NOBODY, -1), "belongs to user 65534"),
    "who made a link": (by_a_link, "is a symbolic link"),
}


def levels(path: Path) -> list[Path]:
    """The file, and its folders in the cache."""
    folders = [p for p in path.parents if p.is_relative_to(cache_dir()) and p != cache_dir()]
    return [path, *folders]


@pytest.mark.parametrize(
    "how", [pytest.param(h, marks=needs_root if h == "its owner" else ()) for h in PLANTS]
)
@pytest.mark.parametrize("loader", LOADERS)
def test_what_others_have_a_say_in_is_not_loaded(loader, how):
    put, load, suffix = LOADERS[loader]
    plant, told = PLANTS[how]
    for level in range(len(levels(put()))):  # each in a cache of its own
        shutil.rmtree(cache_dir())
        path = put()
        place = levels(path.with_suffix(suffix))[level]
        plant(place)
        with pytest.raises(RuntimeError) as refused:
            load(path)
        assert f"{place} " in str(refused.value)
        assert told.format(place) in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("way", ["its folder", "a folder above", "the path"])
def test_the_cache_is_known_by_whichever_path_it_is_reached(home, tmp_path, monkeypatch, way):
    """Itself it may be a symbolic link."""
    path = put_sealed("jit", "key", "libpyflash_kernels-x.so")
    real = cache_dir()
    link = tmp_path / "link"
    link.symlink_to(home if way == "a folder above" else real)
    shown = link / real.relative_to(home if way == "a folder above" else real)
    if way != "the path":
        monkeypatch.setenv("PYFLASH_CACHE_DIR", str(shown))
    path.parent.chmod(0o777)
    named = path if way == "its folder" else shown / path.relative_to(real)
    with pytest.raises(RuntimeError, match=f"{path.parent} can be written by others"):
        pyflash.load(named)


@pytest.mark.parametrize("how", ["others", "the group"])
@pytest.mark.parametrize("level", range(1, 4), ids=["folder", "its folder", "kind"])
def test_objects_are_not_built_among_files_of_others(compiler, level, how):
    c = compiled(compiler)
    c.object.unlink()
    place = levels(c.object)[level]
    PLANTS[how][0](place)
    with pytest.raises(CacheError, match=f"`chmod -R go-w {place}`"):
        compile_all([c], "objects")
    subprocess.run(["chmod", "-R", "go-w", place], check=True)
    assert compile_all([c], "objects") == []


@pytest.mark.parametrize("suffix", [".o", ".json", ".cpp", ""])
def test_an_object_that_others_can_write_is_compiled_again(compiler, suffix):
    c = compiled(compiler)
    path = c.object.with_suffix(suffix) if suffix else c.object.parent
    if suffix == ".cpp":
        c.object.unlink()
    path.chmod(0o777)
    before = os.open(path, os.O_RDONLY)  # else another file may get its number
    assert compile_all([c], "objects") == []
    assert not os.path.samestat(os.fstat(before), path.stat())
    assert path.stat().st_mode & 0o077 == 0
    os.close(before)


@pytest.mark.parametrize("how", ["others", "who made a link"])
@pytest.mark.parametrize("level", range(5))
def test_headers_of_others_are_not_included(level, how):
    header = next(include_dir().rglob("*.h"))
    place = levels(header)[level]
    PLANTS[how][0](place)
    if level == 0:  # only the file: it is written again
        include_dir()
        assert header.lstat().st_mode & 0o022 == 0
        assert not header.is_symlink()
    else:
        with pytest.raises(CacheError, match=f"{place} (can be written by|is a symbolic link)"):
            include_dir()


def test_a_library_is_loaded_from_folders_that_others_can_only_read(fakes):
    path = library_file(user_dir(build.abi(), "x"), "x")
    path.parent.mkdir(parents=True, mode=0o755)
    shutil.copy(fakes[0], path)
    assert pyflash.load(path) == N_FAKE_CONFIGS


def test_what_is_not_in_the_cache_is_as_trusted_as_who_names_it(fakes, tmp_path):
    """As what stands beside the package's modules, which the group may write as well."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    folder.chmod(0o775)
    shutil.copy(fakes[0], folder)
    if os.geteuid() == 0:  # as in a container with a folder of the host's user
        os.chown(folder, NOBODY, NOBODY)
        os.chown(folder / fakes[0].name, NOBODY, NOBODY)
    assert pyflash.load(folder / fakes[0].name) == N_FAKE_CONFIGS


def run_python(code: str, *arguments: object) -> list[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


REPLACE_WHILE_LOADING = """if True:
    import os, sys, torch, pyflash
    load, path, other = torch.ops.pyflash.load_kernels, *sys.argv[1:]
    def replace_and_load(name):
        os.replace(other, path)
        return load(name)
    torch.ops.pyflash.load_kernels = replace_and_load
    print(pyflash.load(path))
"""
LOAD_AND_REPLACE = """if True:
    import os, sys, torch, pyflash
    path, other = sys.argv[1:]
    print(pyflash.load(path))
    os.replace(other, path)
    print(pyflash.load(path), pyflash.load(path))
"""


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        pytest.param(REPLACE_WHILE_LOADING, [N_FAKE_CONFIGS], id="between check and use"),
        pytest.param(
            LOAD_AND_REPLACE, [N_FAKE_CONFIGS, *[N_OTHER_CONFIGS] * 2], id="after it was loaded"
        ),
    ],
)
def test_what_is_loaded_is_what_was_checked(fakes, tmp_path, code, loaded):
    path, other = tmp_path / "x.so", tmp_path / "other.so"
    shutil.copy(fakes[0], path)
    shutil.copy(fakes[1], other)
    assert run_python(code, path, other) == list(map(str, loaded))


# Another user


@needs_root
def test_what_another_user_planted_is_skipped(open_folder, monkeypatch, fakes):
    """Pitfall 29: a library that another user planted."""
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(open_folder))
    folder = user_dir(build.abi(), "evil").parent
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    data = fakes[0].read_bytes()

    def plant() -> str:
        path = library_file(folder / "evil", "evil")
        path.parent.mkdir()
        path.write_bytes(data)
        path.with_suffix(".json").write_bytes(record)
        return str(path)

    write_record(open_folder / "evil.so", {"rebuild": ["rm", "-rf", "/"]})
    record = (open_folder / "evil.json").read_bytes()
    planted = as_user(NOBODY, plant)
    monkeypatch.setattr(library, "LIB_DIR", open_folder / "none")
    with pytest.warns(UserWarning, match="skipped a library: ") as caught:
        library._load_kernels()
    (text,) = (str(warning.message) for warning in caught)
    assert planted in text
    assert f"`chmod -R go-w {folder}`" in text
    assert "rm -rf" not in text
    folder.chmod(0o755)
    with pytest.warns(UserWarning, match=f"{folder}/evil belongs to user 65534, who could change"):
        library._load_kernels()


@needs_root
def test_a_cache_of_root_that_users_read_is_loaded(open_folder, monkeypatch, fakes):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(open_folder))
    path = library_file(user_dir(build.abi(), "shared"), "shared")
    path.parent.mkdir(parents=True)
    shutil.copy(fakes[0], path)

    def load() -> int:
        (found,) = kernel_libraries.of_user(build.abi())
        return pyflash.load(found)

    assert as_user(NOBODY, load) == str(N_FAKE_CONFIGS)

    def build_there() -> str:
        with pytest.raises(CacheError, match="cannot be written") as refused, locked():
            pass
        return str(refused.value)

    assert "set PYFLASH_CACHE_DIR to another" in as_user(NOBODY, build_there)
