"""A cache whose files were cut, changed, deleted or replaced: what is built from it is right, and
the cache whole again. Of kernel libraries that are loaded: tests/op/test_libraries.py."""

from __future__ import annotations

import dataclasses
import shutil
import threading

import pytest
from support.damage import damage
from support.fake_compiler import sources

from pyflash.codegen import build, cache, compilation, emulated, linking, seal, toolchain
from pyflash.codegen.cache_dir import cache_dir
from pyflash.codegen.compilation import Compilation, compile_all
from pyflash.codegen.config_header import PATH, emit_config_header, include_dir
from pyflash.codegen.linking import link, reusable

N_OBJECTS, N_LIBRARIES, N_HEADERS = 60, 50, 40
CONFIG = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))


def expected(c: Compilation) -> bytes:
    return f"made of {c.text}".encode()


def test_objects_that_were_damaged_are_compiled_again_and_said(compiler, monkeypatch):
    said = []
    monkeypatch.setattr(compilation.console, "print", lambda line, **_: said.append(line))
    objects = sources(compiler, N_OBJECTS)
    assert compile_all(objects, "objects") == []
    how = [damage(list(c.object.parent.iterdir()), seed) for seed, c in enumerate(objects)]
    assert compile_all(objects, "objects") == []
    for c, what in zip(objects, how, strict=True):
        assert c.object.read_bytes() == expected(c), what
        assert c.record["kernels"] == [], what
        if what.startswith(c.object.name) and "deleted" not in what:
            assert any(str(c.object) in line and "compiled again" in line for line in said), what
    assert [entry for entry in cache.entries() if entry.problem] == []
    said.clear()
    assert compile_all(objects, "objects") == []
    assert said == [f"objects: all {N_OBJECTS} objects reused"]


def test_a_record_that_cannot_be_written_is_said(compiler):
    """As of a disk that is full: no fault of the source, of whose errors there is no log."""
    objects = sources(compiler, 3)
    record = objects[1].object.with_suffix(".json")
    record.mkdir(parents=True)
    objects[1].object.parent.chmod(0o700)
    with pytest.raises(RuntimeError, match=rf"^{record}: Is a directory$"):
        compile_all(objects, "objects")
    assert [c.object.exists() for c in objects] == [True, False, True]


def test_libraries_that_were_damaged_are_linked_again_and_said(compiler, monkeypatch):
    said = []
    monkeypatch.setattr(linking.console, "print", lambda line, **_: said.append(line))
    (c,) = objects = sources(compiler, 1)
    assert compile_all(objects, "objects") == []
    libraries = [cache_dir() / "emulated" / str(i) / "x.so" for i in range(N_LIBRARIES)]
    link(libraries[0], objects, [])
    for library in libraries[1:]:
        shutil.copytree(libraries[0].parent, library.parent)
    how = [damage([library], seed) for seed, library in enumerate(libraries)]
    for library, what in zip(libraries, how, strict=True):
        assert not reusable(library), what
        link(library, objects, [])
        assert reusable(library), what
        contents = b"made of " + expected(c)
        assert library.read_bytes().startswith(contents), what
        assert seal.check(library)["bytes"] == len(contents), what
        if "deleted" not in what:
            assert any(str(library) in line and "built again" in line for line in said), what
    assert [entry for entry in cache.entries() if entry.problem] == []


def test_the_config_header_is_written_again():
    text = emit_config_header()
    for seed in range(N_HEADERS):
        header = include_dir() / PATH
        assert header.read_text() == text
        what = damage([header], seed)
        assert (include_dir() / PATH).read_text() == text, what


def test_a_failed_link_is_one_sentence_and_leaves_nothing(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "sh -c 'echo; echo ld: error: no such thing; exit 1'")
    objects = sources(compiler, 1)
    assert compile_all(objects, "objects") == []
    library = tmp_path / "out" / "x.so"
    with pytest.raises(RuntimeError, match=r"^linking x\.so failed: ld: error: no such thing; all"):
        link(library, objects, [])
    assert list(library.parent.iterdir()) == []
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(RuntimeError, match=r"failed: error: /nonexistent/g\+\+ cannot be run: No"):
        link(library, objects, [])


def test_threads_that_build_the_same_kernels_for_the_cpu_build_them_once(
    compiler, tmp_path, monkeypatch
):
    """They raced for the name under which a library is linked."""
    for name in ("emulator_compiler", "machine_compiler", "cpp_compiler"):
        monkeypatch.setattr(toolchain, name, lambda *_: compiler)
    linked, results, errors = [], [], []
    monkeypatch.setattr(emulated, "link", lambda *a: (linked.append(a[0]), link(*a))[1])

    def emulate() -> None:
        try:
            results.append(emulated.build_emulated([CONFIG]))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=emulate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(linked) == 1
    assert all(result == results[0] for result in results)
    assert len(results) == 4


def test_names_of_libraries_do_not_lead_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "compile_all", lambda *_: pytest.fail("compiled"))
    for name in ("../../../evil", "a/b", "", ".hidden", "a b", "$(touch pwn)", "x" * 152):
        with pytest.raises(ValueError, match="the name of a kernel library is"):
            build.build_kernels([CONFIG], [90], tmp_path, name)


@pytest.mark.parametrize("option", ["-isystem", "-I"])
def test_paths_that_a_shell_would_run_do_not_reach_nvcc(compiler, option):
    cuda = dataclasses.replace(
        compiler, suffix=".cu", includes=(option, "/tmp/$(touch pwn)/include")
    )
    (c,) = sources(cuda, 1)
    with pytest.raises(ValueError, match="goes to nvcc, which passes it to a shell"):
        compile_all([c], "objects")
