"""The resource model against ptxas, for every config that is built by default."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.build import built_resources
from codegen.compilation import ROOT
from pyflash.arch import Arch

# Registers per thread. The model counts fragments; ptxas also keeps addresses, and reuses what is
# dead in its own way.
REGISTER_TOLERANCE = 32


@pytest.fixture(scope="module")
def rows(built_library: Path) -> dict[str, dict[str, int]]:
    """The config map of the library alone, so that this process keeps its own."""
    code = (
        "import json, sys, pyflash\n"
        "pyflash.load(sys.argv[1])\n"
        "rows = pyflash.built_configs().items()\n"
        "print(json.dumps({str(c): [r.n_threads, r.smem_bytes] for c, r in rows}))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, built_library],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = ("n_threads", "smem_bytes")
    return {c: dict(zip(names, row, strict=True)) for c, row in json.loads(result.stdout).items()}


def test_registers_are_near_the_prediction(built_library: Path, built_arch: Arch):
    wrong = {}
    for config, record in built_resources(built_library).items():
        (kernel,) = record["kernels"]
        predicted = config.resources(built_arch).registers
        if abs(predicted - kernel["registers"]) > REGISTER_TOLERANCE:
            wrong[str(config)] = f"predicted {predicted}, ptxas {kernel['registers']}"
    assert not wrong


def test_shared_memory_and_threads_are_as_predicted(
    built_library: Path, built_arch: Arch, rows: dict[str, dict[str, int]]
):
    """All of it dynamic: the size of the kernel's SharedStorage."""
    for config, record in built_resources(built_library).items():
        predicted = config.resources(built_arch)
        row = rows[str(config)]
        assert row["smem_bytes"] == predicted.smem_bytes == config.smem_bytes, str(config)
        assert row["n_threads"] == predicted.n_threads, str(config)
        assert [kernel["static_smem_bytes"] for kernel in record["kernels"]] == [0]


def test_no_config_spills_that_the_model_trusts(built_library: Path, built_arch: Arch):
    """A spill that is not predicted would be neither refused nor warned of."""
    spills = {
        str(config): record["kernels"][0]["spill_store_bytes"]
        for config, record in built_resources(built_library).items()
        if record["kernels"][0]["spill_store_bytes"] > 0
        and not config.resources(built_arch).spill_predicted
    }
    assert not spills
