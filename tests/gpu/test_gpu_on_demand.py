"""Kernels compiled by the call that names them; needs nvcc and CUTLASS's headers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]

# No named set has them.
CONFIG = "(FP16, 64, 64, 32, 4): async+swizzled+load_0_0_0_tiles"
SM90 = "(FP16, 64, 128, 64, 2): sm90+stages_3+overlap+pingpong"

CALL = """if True:
    import sys, time
    import torch, pyflash
    from pyflash.op.reference import check
    config = sys.argv[1]
    assert pyflash.config.parse(config) not in pyflash.built_configs()
    print("kernels loaded", len(pyflash.built_configs()))
    q, k, v = (torch.randn(2, 129, 4, 64, dtype=torch.float16, device="cuda") for _ in range(3))
    try:
        pyflash.attention(q, k, v, config=config)
    except RuntimeError as error:
        assert "compile=True" in str(error), error
    else:
        raise AssertionError("it is built")
    start = time.monotonic()
    out = pyflash.attention(q, k, v, config=config, causal=True, compile=True)
    print(f"seconds {time.monotonic() - start:.2f}")
    check(out, q, k, v, causal=True)
    check(pyflash.attention(q, k, v, config=config), q, k, v)
    compiled = torch.compile(pyflash.attention, fullgraph=True)
    capped = compiled(q, k, v, config=config, softcap=5.0, compile=True)
    check(capped, q, k, v, softcap=5.0)
    start = time.monotonic()
    for _ in range(1000):
        pyflash.attention(q, k, v, config=config, compile=True)
    torch.cuda.synchronize()
    print(f"us per call {1e3 * (time.monotonic() - start):.1f}")
"""


def call(folder: Path, config: str = CONFIG, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CALL, config],
        cwd=ROOT,
        env={**os.environ, "PYFLASH_CACHE_DIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, float], str]:
    """The figures that it printed, and what the build said."""
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    print(printed)
    lines = (line.rpartition(" ") for line in printed.splitlines())
    return {name: float(value) for name, _, value in lines}, errors


@pytest.fixture(scope="module", autouse=True)
def needs_a_compiler():
    from pyflash.third_party import cuda, cutlass

    try:
        cuda.find_nvcc()
        cutlass.include_dir()
    except (cuda.CudaError, cutlass.CutlassError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("config", [CONFIG, SM90])
def test_a_call_compiles_its_config_and_later_processes_load_it(tmp_path, config):
    if config == SM90 and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("it is not for this machine's GPU")
    processes = [call(tmp_path / "cache", config), call(tmp_path / "cache", config)]
    figures, said = zip(*map(finish, processes), strict=True)
    n_archs = len({torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())})
    # Each kernel once. As device code alone, where a loaded library launches it: one for causal,
    # in which the plain calls run too, and one for softcap. Else a library with all of them.
    alone = figures[0]["kernels loaded"] > 0 and n_archs == 1
    # A process may say, too, that it compiles what it then waits for.
    n_builds = [words.count("compiling 1,") for words in said]
    assert max(n_builds) == (2 if alone else 1), said
    figures, errors = finish(call(tmp_path / "cache", config))
    assert "compiling" not in errors
    assert figures["seconds"] < 5


def test_without_a_compiler_the_error_says_how_to_get_one(tmp_path):
    process = call(tmp_path / "cache", CUDA_HOME=str(tmp_path))
    _, errors = process.communicate()
    assert process.returncode == 1
    last = errors.strip().splitlines()[-1]
    assert "is not built, and cannot be compiled: CUDA_HOME is " in last
    assert "set it to the root of a CUDA toolkit" in last
