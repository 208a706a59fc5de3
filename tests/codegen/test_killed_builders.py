"""Builders that are killed or interrupted: no process outlives them, and the cache works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.killed_builders import MARK, processes_of

from pyflash.codegen import cache
from pyflash.codegen.compilation import ROOT

N_KILLS = 30


def run(arguments: list[str], folder: Path, mark: str) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir()
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYFLASH_CACHE_DIR": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        MARK: mark,
    }
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_compilers(mark: str) -> None:
    while not any("cc1plus" in name for name in processes_of(mark).values()):
        time.sleep(0.02)


def wait_for_the_end(mark: str) -> None:
    """Waits until no process bears the mark; pytest's timeout is that of the suite."""
    end = time.monotonic() + 30
    while left := processes_of(mark):
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.02)


def test_builders_killed_at_random_moments(tmp_path, monkeypatch):
    process = run(
        ["-m", "support.killed_builders", str(tmp_path), str(N_KILLS)], tmp_path, "killed"
    )
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    outcomes = [json.loads(line) for line in printed.splitlines()]
    assert len(outcomes) == N_KILLS
    assert [outcome for outcome in outcomes if outcome["left"]] == []
    # A kill between the creation of the folder of temporary files and the start of its guard.
    assert outcomes[-1]["temporary"] <= N_KILLS // 10
    # They were killed at work: while compilers ran, and between and after them.
    running = [outcome["running"] for outcome in outcomes]
    assert sum(any("compiler" in name for name in names) for names in running) >= N_KILLS // 8
    assert sum(outcome["compiled"] > 0 for outcome in outcomes) >= N_KILLS // 10
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))
    assert [entry for entry in cache.entries() if entry.problem] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_real_build_that_is_stopped_leaves_no_compiler(tmp_path, number):
    """The signal goes to the builder alone, not to its process group as Ctrl-C's does."""
    mark = f"stopped in {tmp_path}"
    process = run(["-m", "codegen", "--ops", "--out", str(tmp_path / "lib")], tmp_path, mark)
    wait_for_compilers(mark)
    process.send_signal(number)
    _, errors = process.communicate()
    wait_for_the_end(mark)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert errors.splitlines()[-1] == "stopped; what is compiled is kept in the cache"
        assert "Traceback" not in errors
    assert not list((tmp_path / "lib").glob("*"))
    assert not list((tmp_path / "tmp").iterdir())
