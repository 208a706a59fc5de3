"""The cache: whose it may be, what is in it, and how it is pruned."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from support.other_user import NOBODY

from pyflash.codegen import cache, seal
from pyflash.codegen.cache_dir import CacheError, cache_dir, replacing
from pyflash.codegen.cache_locks import lock_file, locked, locked_for
from pyflash.codegen.compile_object import content_digest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(folder))
    return folder


def put_object(name: str, size: int = 100, age: float = 0) -> Path:
    path = cache_dir() / "objects" / name / "0123456789abcdef" / f"{name}.o"
    path.parent.mkdir(parents=True)
    path.write_bytes(os.urandom(size))
    record = {"seconds": 1.0, "kernels": [], "bytes": size}
    with path.open("rb") as file:
        record["sha256"] = content_digest(file, record)
    path.with_suffix(".json").write_text(json.dumps(record))
    return aged(path, age)


def put_library(kind: str, name: str, size: int = 100, age: float = 0) -> Path:
    path = cache_dir() / kind / name / f"{name}.so"
    path.parent.mkdir(parents=True)
    path.write_bytes(os.urandom(size))
    seal.seal(path, {"abi": "x"})
    return aged(path, age)


def aged(path: Path, age: float) -> Path:
    os.utime(path.parent, (time.time() - age,) * 2)
    return path


# Who waits for whom


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (["a"], ["b"], False),
        (["a"], ["a"], True),
        (["a", "b"], ["b", "a"], True),
        (["a"], None, True),
        (None, ["a"], True),
        (None, None, True),
    ],
)
def test_builders_wait_for_those_that_write_the_same(folder, first, second, waits):
    """None: the whole cache."""

    def lock(names, waiting=None):
        folders = None if names is None else [folder / "emulated" / name for name in names]
        return locked(waiting) if folders is None else locked_for(folders, waiting)

    waited, entered, left = threading.Event(), threading.Event(), []

    def another() -> None:
        with lock(second, lambda _: waited.set()):
            assert not waits or left == [True]
            entered.set()

    thread = threading.Thread(target=another)
    with lock(first):
        thread.start()
        assert (waited if waits else entered).wait(60)
        assert waited.is_set() == waits
        assert entered.is_set() != waits
        left.append(True)
    thread.join(60)
    assert entered.is_set()


def test_a_thread_enters_again_unless_it_would_wait_for_itself(folder):
    a, b = (folder / "emulated" / name for name in "ab")
    with locked_for([a]) as first, locked_for([a, b]) as second, locked_for([b]) as third:
        assert second[: len(first)] == first
        assert (len(first), len(second), third) == (2, 3, second)
        with pytest.raises(RuntimeError, match="this thread makes something"), locked():
            pass
    with locked() as alone, locked() as again, locked_for([a]) as made:
        assert again == alone == made[:1]
    with locked():
        pass


def test_a_thing_has_one_lock_by_whichever_path_and_leaves_no_folder(folder, tmp_path):
    other = tmp_path / "other"
    other.symlink_to(folder)
    with locked_for([folder / "emulated" / "a"]):
        assert not (folder / "emulated").exists()
        assert lock_file(other / "emulated" / "a") == lock_file(folder / "emulated" / "a")
    assert lock_file(tmp_path / "a") != lock_file(folder / "a")


# Whose it may be


def test_a_new_cache_is_its_users_alone(folder):
    with locked():
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702, 0o1777])
def test_a_cache_that_others_can_write_to_is_refused(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(CacheError, match=f"{mode:o}.*`chmod -R go-w {folder}`, else remove it,"):
        cache_dir()
    folder.chmod(0o755)
    assert cache_dir() == folder


def test_a_cache_of_somebody_else_is_refused(folder, monkeypatch):
    folder.mkdir()
    if os.geteuid() == 0:  # whose files everybody trusts
        os.chown(folder, NOBODY, -1)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
    with pytest.raises(CacheError, match=r"belongs to user .* set PYFLASH_CACHE_DIR to a folder"):
        cache_dir()


@pytest.mark.parametrize("name", ["a$(touch pwn)", "a`b`", 'a"b', "a'b", "a;b", "a,b", "a\nb"])
def test_a_cache_whose_name_a_shell_would_run_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / name))
    with pytest.raises(CacheError, match="expected a path of letters"):
        cache_dir()


def test_a_file_in_the_place_of_the_cache_is_refused(folder):
    folder.write_text("")
    with pytest.raises(CacheError, match="is a file: remove it"):
        cache_dir()


# What is in it


def test_entries_tell_kind_size_age_and_what_is_bad(folder):
    assert cache.entries() == []
    assert not folder.exists()
    good = put_object("good", 1000, age=500)
    bad = put_object("bad")
    bad.write_bytes(bad.read_bytes()[:-1])
    cut = put_library("emulated", "cut")
    os.truncate(cut, 50)
    put_library("jit", "whole")
    failed = cache_dir() / "objects" / "failed" / "k"
    failed.mkdir(parents=True)
    (failed / "failed.log").write_text("error")
    (good.parent / ".partial-1-x").write_bytes(b"12345")
    found = {(e.kind, e.name): e for e in cache.entries()}
    assert {key: e.problem for key, e in found.items()} == {
        ("objects", "bad"): "it is damaged",
        ("objects", "failed"): "there is no object: it did not compile, or was stopped",
        ("objects", "good"): None,
        ("emulated", "cut"): (
            "it is cut off, or was not built by this version of pyflash: no seal"
        ),
        ("jit", "whole"): None,
        ("partial", ".partial-1-x"): "half-written",
    }
    entry = found["objects", "good"]
    assert entry.path == good.parent
    assert entry.bytes == sum(path.stat().st_size for path in good.parent.iterdir())
    assert 0 <= time.time() - found["jit", "whole"].used < 60
    assert all(e.problem is None for e in cache.entries(verify=False) if e.kind != "partial")


RECORDS = {
    "deleted": lambda text: None,
    "cut": lambda text: text[: len(text) // 2],
    "of another object": lambda text: text.replace('"seconds": 1.0', '"seconds": 2.0'),
    "a list": lambda text: "[]",
    "without a hash": lambda text: "{}",
    "of a negative size": lambda text: text.replace('"bytes": 100', '"bytes": -1'),
    "of no size": lambda text: text.replace('"bytes": 100', '"bytes": "100"'),
}


@pytest.mark.parametrize("change", RECORDS)
def test_an_object_without_its_record_is_bad(change):
    path = put_object("x")
    assert cache.object_problem(path) is None
    record = path.with_suffix(".json")
    text = RECORDS[change](record.read_text())
    record.unlink() if text is None else record.write_text(text)
    assert cache.object_problem(path) is not None


# Pruning


def names(entries) -> list[str]:
    return sorted(entry.name for entry in entries)


def test_pruning_by_age_kind_size_and_state():
    put_object("old", age=1000)
    put_object("new", age=10)
    put_library("jit", "used", size=4000, age=5)
    put_library("jit", "unused", size=4000, age=2000)
    cut = put_library("emulated", "cut", age=1)
    os.truncate(cut, 50)
    assert names(cache.prune(older_than=100, dry_run=True)) == ["old", "unused"]
    assert names(cache.prune(older_than=100, kinds=["jit"], dry_run=True)) == ["unused"]
    assert names(cache.prune(bad=True, dry_run=True)) == ["cut"]
    assert names(cache.prune(keep_bytes=5000, dry_run=True)) == ["unused"]
    assert names(cache.prune(keep_bytes=0, dry_run=True)) == names(cache.entries())
    assert names(cache.prune(everything=True, kinds=["objects"], dry_run=True)) == ["new", "old"]
    assert cache.prune(dry_run=True) == []
    assert names(cache.prune(bad=True, older_than=1500)) == ["cut", "unused"]
    assert names(cache.entries()) == ["new", "old", "used"]
    assert names(cache.prune(older_than=500)) == ["old"]
    assert [path.name for path in (cache_dir() / "objects").iterdir()] == ["new"]
    with pytest.raises(ValueError, match="unknown kinds gemm: expected some of objects"):
        cache.prune(kinds=["gemm"])


def test_half_written_files_go_with_any_pruning_and_at_the_next_build():
    path = put_object("x")
    stray = path.with_name(".partial-1-x.o")
    stray.write_text("half")
    assert names(cache.prune()) == [stray.name]
    assert not stray.exists()
    stray.write_text("half")
    with locked_for():
        assert not stray.exists()
    assert cache.object_problem(path) is None


def test_pruning_waits_for_builders_and_takes_their_locks_along(folder):
    """Else the next to come would make what a builder is making, under a new file's lock."""
    path, pruned = put_object("x"), threading.Event()

    def prune() -> None:
        cache.prune(everything=True)
        pruned.set()

    thread = threading.Thread(target=prune)
    with locked_for([path]):
        thread.start()
        assert not pruned.wait(0.2)
        assert lock_file(path).exists()
    thread.join(60)
    assert pruned.is_set()
    assert cache.entries() == []
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["lock"]


def test_threads_that_replace_one_file_do_not_meet(tmp_path):
    """They had one temporary name for all."""
    path, n_threads, errors = tmp_path / "x", 8, []
    barrier = threading.Barrier(n_threads)

    def write() -> None:
        try:
            for i in range(20):
                barrier.wait()
                with replacing(path) as partial:
                    partial.write_text(str(i) * 100)
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=write) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert path.read_text() == "19" * 100
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
