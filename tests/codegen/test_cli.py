"""The command line of builds: what goes wrong is one line and an exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.invoked import build_command

from pyflash.codegen import build
from pyflash.codegen.compilation import ROOT
from pyflash.third_party import cuda

CONFIG = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PYFLASH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_nvcc_known():
    cuda.find_nvcc.cache_clear()
    yield
    cuda.find_nvcc.cache_clear()


def error_of(*arguments: object) -> str:
    result = build_command(*arguments)
    assert result.exit_code == 1
    printed = result.stderr.splitlines()
    (error,) = (line for line in printed if line.startswith("error: "))
    assert printed[-1] == error
    return error


def test_a_cache_that_cannot_be_created(monkeypatch):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", "/proc/nowhere/cache")
    error = error_of("--ops")
    assert error.startswith("error: the cache folder /proc/nowhere/cache cannot be created (")
    assert error.endswith("set PYFLASH_CACHE_DIR to one that can")


def test_a_cache_that_cannot_be_written(cache):
    (cache / "lock").mkdir(parents=True)
    assert "cannot be written (Is a directory)" in error_of("--ops")


def test_a_cache_that_a_shell_would_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLASH_CACHE_DIR", f"{tmp_path}/$(touch {tmp_path}/pwn)")
    assert "expected a path of letters" in error_of("--arch", "90", CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_created(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "compile_all", lambda *_: [])
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "lib"
    assert error_of("--ops", "--out", out) == f"error: {out}: Not a directory"


def test_a_name_that_leads_elsewhere():
    error = error_of("--arch", "90", "--name", "../../../evil", CONFIG)
    assert error.startswith("error: the name of a kernel library is '../../../evil': expected")


def test_no_host_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    error = error_of("--ops")
    assert error.startswith("error: no C++ compiler: `/nonexistent/g++ --version` failed")


@pytest.mark.usefixtures("no_nvcc_known")
@pytest.mark.parametrize("home", ["/nonexistent", "/usr/share"])
def test_no_cuda_compiler_where_cuda_home_says(monkeypatch, home):
    monkeypatch.setenv("CUDA_HOME", home)
    error = error_of("--arch", "90", CONFIG)
    assert error.startswith(f"error: CUDA_HOME is {home}, ")
    assert "unset it to use nvcc on PATH or NVIDIA's wheels" in error


def test_a_link_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "compile_all", lambda *_: [])
    out = tmp_path / "lib"
    error = error_of("--ops", "--out", out)  # no object is there
    assert error.startswith("error: linking libpyflash_ops.so failed: ")
    assert list(out.iterdir()) == []


def test_a_disk_that_is_full_while_linking(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "compile_all", lambda *_: [])
    linker = tmp_path / "linker"
    linker.write_text(
        "#!/bin/sh\n[ $1 = --version ] && exec g++ --version\n"
        "echo '/usr/bin/ld: final link failed: No space left on device'\n"
        "echo 'collect2: error: ld returned 1 exit status'; exit 1\n"
    )
    linker.chmod(0o755)
    monkeypatch.setenv("CXX", str(linker))
    error = error_of("--ops", "--out", tmp_path / "lib")
    assert "failed: /usr/bin/ld: final link failed: No space left on device; all that" in error
    assert "; free some, in the cache by `pyflash cache --prune" in error


def test_the_default_name_is_that_of_what_is_built(cache, monkeypatch):
    """One build leaves the libraries of others alone."""
    monkeypatch.setattr(build, "compile_all", lambda *_: [])
    monkeypatch.setattr(build, "_link_kernels", lambda path, *_: path)
    monkeypatch.setattr(build.library_objects, "compiled_code", lambda *_: None)
    twin = CONFIG.replace("(FP16", "(BF16")
    names = []
    for arguments in ([CONFIG], [twin], [CONFIG, twin], [twin, CONFIG], ["--set", "prog"]):
        result = build_command("--arch", "90", *arguments)
        assert result.exit_code == 0
        path = Path(result.stdout.strip())
        assert path.is_relative_to(cache / "kernels")
        names.append(path.stem.removeprefix("libpyflash_kernels-"))
    assert names[0] == "fp16_64_64_32_4_async_load_0_0_0_tiles"
    assert names[1] == "bf16_64_64_32_4_async_load_0_0_0_tiles"
    assert names[2] == names[3]
    assert names[2].startswith("2_configs_")
    assert names[4] == "prog"


def test_a_closed_pipe_ends_a_list_without_a_word():
    """As of `pyflash build --list | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "codegen", "--set", "tune", "--list", "--arch", "90"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().startswith("(")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1
