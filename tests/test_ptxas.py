"""The resource model against ptxas, for every config that is built by default."""

from __future__ import annotations

from pathlib import Path

from codegen.build import built_resources
from pyflash.arch import Arch

# Registers per thread of the plain kernel. The model counts fragments; ptxas also keeps addresses,
# and reuses what is dead in its own way.
REGISTER_TOLERANCE = 24


def test_registers_are_near_the_prediction(built_library: Path, built_arch: Arch):
    wrong = {}
    for config, record in built_resources(built_library).items():
        plain, *_ = record["kernels"]
        predicted = config.resources(built_arch).registers
        if abs(predicted - plain["registers"]) > REGISTER_TOLERANCE:
            wrong[str(config)] = f"predicted {predicted}, ptxas {plain['registers']}"
    assert not wrong


def test_all_shared_memory_is_dynamic(built_library: Path):
    """So that the config map's smem_bytes is all of it."""
    for config, record in built_resources(built_library).items():
        assert {kernel["static_smem_bytes"] for kernel in record["kernels"]} == {0}, str(config)


def test_no_config_spills_that_the_model_trusts(built_library: Path, built_arch: Arch):
    """A spill that is not predicted would be neither refused nor warned of."""
    spills = {
        str(config): record["kernels"][0]["spill_store_bytes"]
        for config, record in built_resources(built_library).items()
        if record["kernels"][0]["spill_store_bytes"] > 0
        and not config.resources(built_arch).spill_predicted
    }
    assert not spills
