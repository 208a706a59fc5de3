"""The resource model of the SM90 backward against ptxas: every legal config of one way to add dQ at
each d_head with both windows, which take most, and those that are built by default without, too."""

from __future__ import annotations

import pytest
from support.machine_code import compile_together

from pyflash.codegen.kernels import Request
from pyflash.config import Arch, KernelConfig, Space, named_set
from pyflash.third_party.cuda import CudaError, find_nvcc

SM90 = Arch.of(90)
PLAIN, WINDOWS = "plain", "right_window+left_window"
CONFIGS = [
    config
    for config in Space(family="sm90_backward", dtype="FP16").legal(SM90)
    if config.d_head == 256 or not config.dQ_by_red
]


def features_of(config: KernelConfig) -> tuple[str, ...]:
    return (PLAIN, WINDOWS) if config in named_set("backward") else (WINDOWS,)


@pytest.fixture(scope="module")
def kernels(uncaptured):
    """By config, a record of each kernel."""
    try:
        find_nvcc()
    except CudaError as error:
        pytest.skip(str(error))
    # Two units keep two cores busy.
    requests = [Request(config, features_of(config)) for config in CONFIGS]
    with uncaptured():
        found = compile_together([requests[::2], requests[1::2]], SM90)
    return {config: records for config, (_, records) in found.items()}


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_what_the_model_predicts_is_what_ptxas_takes(kernels, config):
    predicted = config.resources(SM90)
    assert len(kernels[config]) == len(features_of(config))
    for kernel in kernels[config]:
        assert kernel["registers"] == predicted.registers
        most = 0 if config in named_set("backward") else 32  # bytes, beyond what the model tells
        assert predicted.spill_predicted or kernel["spill_store_bytes"] <= most
        assert kernel["static_smem_bytes"] == 0


# Of each loop the first config: capped scores take branches of their own.
CAPPED = [
    next(c for c in named_set("backward") if (c.dtype.name, c.d_head) == ("BF16", d_head))
    for d_head in (64, 128, 192)
]


@pytest.fixture(scope="module")
def capped(uncaptured):
    """By config, its object and the records of its kernels with softcap."""
    try:
        find_nvcc()
    except CudaError as error:
        pytest.skip(str(error))
    requests = [Request(config, ("right_window+softcap",)) for config in CAPPED]
    with uncaptured():
        return compile_together([requests[::2], requests[1::2]], SM90)


@pytest.mark.parametrize("config", CAPPED, ids=str)
def test_capped_scores_spill_nothing_and_leave_mmas_in_flight(capped, config):
    compilation, (kernel,) = capped[config]
    assert kernel["spill_store_bytes"] == 0
    assert "wgmma.mma_async instructions are serialized" not in compilation.log.read_text()
