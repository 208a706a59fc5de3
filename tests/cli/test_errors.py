"""What goes wrong in a command: one line on stderr, an exit status, and nothing lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.invoked import assert_one_line, invoke

from pyflash.ui.app import one_line

BEST = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
ILLEGAL = "(FP16, 128, 64, 64, 4): eager+load_0_0_0_tiles"
# A process runs this: a command with a patch applied before.
_PATCHED = """
import sys
from pyflash import cli, codegen, third_party
{patch}
cli.app({arguments!r}, prog_name="pyflash")
"""


def test_nothing_is_emulated_for_a_profile_without_ncu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(
        "pyflash.inspect.inspection.emulated_traffic", lambda *_: pytest.fail("emulated")
    )
    result = invoke("profile", BEST)
    assert_one_line(result)
    assert "ncu not found" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["config", "no config"],
        ["config", BEST, "--arch", "sm_7"],
        ["inspect", BEST, "--arch", "sm_7"],
        ["emulate", "(FP16, 128"],
        ["compare", "missing.csv", "missing.csv"],
        ["registers", "missing.so"],
        ["config", BEST, "--html", "/proc/page.html"],
        ["config", BEST, "--html", "/"],
        ["bench", "--out", "/proc/records.jsonl"],
        ["bench", "--plot", "/proc/figure.svg"],
        ["bench", "--device", "mps"],
        ["bench", "--json", "--format", "csv"],
        ["bench", "--host", "--device", "cuda:99"],
        ["ladder", "--html", "/proc/page.html"],
        ["tune", "--picture", "/proc/figure.svg"],
        ["tune", "--html", "/proc/page.html"],
        ["tune", "--picture", "figure.bmp"],
    ],
)
def test_errors_are_one_line(arguments):
    assert_one_line(invoke(*arguments))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["build", BEST, "--arch", "90", "--name", "../x"], "the name of a kernel library is"),
        (["build", ILLEGAL, "--arch", "90"], "1 config cannot be built: "),
        (["build", BEST, "--arch", "90", "--out", "/proc/nowhere"], "/proc/nowhere: "),
        (["emulate", BEST, "--order", "down"], "unknown order 'down'"),
        (["emulate", BEST, "--softcap", "-1"], "softcap = -1: expected a finite number"),
        (["emulate", BEST, "--heads", "3", "--heads-kv", "2"], "divides the 3 of q"),
        (["emulate", BEST, "--timeline", "/proc/line.svg"], "/proc/line.svg: "),
        (["inspect", BEST, "--arch", "sm_90", "--features", "fast"], "unknown feature 'fast'"),
        (["inspect", BEST, "--arch", "sm_90", "--part", "all"], "unknown parts ['all']"),
        (["diff", BEST, BEST, "--arch", "sm_90", "--features", "fast"], "unknown feature 'fast'"),
        (["diff", BEST, ILLEGAL, "--arch", "sm_90", "--emulate"], "1 config cannot be built: "),
        (["ladder", "--part", "all"], "unknown parts ['all']"),
    ],
    ids=lambda value: "-".join(value[:1] + value[-2:]) if isinstance(value, list) else "",
)
def test_what_is_asked_wrongly_is_told_before_anything_is_compiled(arguments, says, monkeypatch):
    """Where nothing can be compiled, for want of a cache."""
    monkeypatch.setenv("PYFLASH_CACHE_DIR", "/proc/nowhere")
    result = invoke(*arguments)
    assert_one_line(result)
    assert says in result.stderr


def test_nothing_is_computed_for_a_file_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr("pyflash.inspect.sheet.Sheet.of", lambda *_: pytest.fail("computed"))
    result = invoke("config", BEST, "--html", tmp_path / "file" / "page.html")
    assert_one_line(result)
    assert (tmp_path / "file").read_text() == "kept"


def test_an_error_while_writing_leaves_the_old_file(monkeypatch, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")

    def disk_full(self, text):
        with self.open("w") as file:
            file.write(text[:10])
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", disk_full)
    result = invoke("config", BEST, "--html", path)
    monkeypatch.undo()
    assert_one_line(result)
    assert result.stderr.startswith(f"error: {path}: No space left on device; free some, ")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_results_that_a_full_disk_has_no_room_for(form):
    command = [sys.executable, "-m", "pyflash.cli", "config", BEST, *form]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: No space left on device; free some, ")
    assert result.stderr.count("\n") == 1


def test_unwritable_cache_and_missing_compiler_are_one_line(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    build = [sys.executable, "-m", "pyflash.cli", "build", BEST, "--arch", "90"]
    for variables in ({"PYFLASH_CACHE_DIR": f"{tmp_path}/file/cache"}, {"CXX": "/nonexistent/g++"}):
        environment = os.environ | {"PYFLASH_CACHE_DIR": f"{tmp_path}/cache"} | variables
        command = [*build, "--out", str(tmp_path / "out")]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 1
        assert "Traceback" not in result.stderr
        assert result.stderr.splitlines()[-1].startswith("error: ")
        assert not list(tmp_path.glob("out/*"))


def test_a_closed_pipe_is_no_fault():
    command = [sys.executable, "-m", "pyflash.cli", "space", "B_r=64", "B_c=64", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        stderr = process.stderr.read()
        process.wait(timeout=120)
    assert process.returncode == 1
    assert stderr == b""


def test_ctrl_c_exits_with_130_and_a_word():
    code = _PATCHED.format(
        patch="from pyflash.inspect.sheet import Sheet\nimport time\n"
        "Sheet.of = lambda *_: (print('ready', flush=True), time.sleep(60))",
        arguments=["config", BEST],
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "interrupted\n")


def test_messages_become_one_line():
    assert one_line(ValueError("1 of 2 failed\n\n  a.cu\n")) == "1 of 2 failed; a.cu"
    assert one_line(FileNotFoundError(2, "No such file", "a.csv")) == "a.csv: No such file"
    assert one_line(RuntimeError()) == "RuntimeError"
    assert one_line(ValueError("2 configs:\na\nb")) == "2 configs: a; b"
    full = one_line(OSError(errno.ENOSPC, "No space left on device"))
    assert full.startswith("No space left on device; free some, in the cache by `pyflash cache")
