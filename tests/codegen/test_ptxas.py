"""The resource model against ptxas."""

from __future__ import annotations

from pathlib import Path

from pyflash.codegen.build import built_resources

# Registers per thread of the plain kernel. The model counts fragments; ptxas also keeps addresses,
# and reuses what is dead in its own way. Furthest off, by 33 and 26, are copies through registers
# and waits for every copy; the configs that are built by default are within 19.
REGISTER_TOLERANCE = 36


def test_registers_are_near_the_prediction(plain_kernels, built_arch):
    wrong = {}
    for config, compilation in plain_kernels.items():
        (kernel,) = compilation.record["kernels"]
        predicted = config.resources(built_arch).registers
        if abs(predicted - kernel["registers"]) > REGISTER_TOLERANCE:
            wrong[str(config)] = f"predicted {predicted}, ptxas {kernel['registers']}"
    assert not wrong


def test_no_config_spills_that_the_model_trusts(plain_kernels, built_arch):
    """A spill that is not predicted would be neither refused nor warned of."""
    spills = {}
    for config, compilation in plain_kernels.items():
        (kernel,) = compilation.record["kernels"]
        if kernel["spill_store_bytes"] and not config.resources(built_arch).spill_predicted:
            spills[str(config)] = kernel["spill_store_bytes"]
    assert not spills


def test_all_shared_memory_is_dynamic(built_library: Path):
    """So that the config map's smem_bytes is all of it."""
    for config, record in built_resources(built_library).items():
        assert {kernel["static_smem_bytes"] for kernel in record["kernels"]} == {0}, str(config)
