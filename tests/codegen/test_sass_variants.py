"""The machine code of kernels with a variant: no spills, and a load for two rows' distances."""

from __future__ import annotations

import pytest

from pyflash.config import DType
from pyflash.inspect.compiled import compiled_kernels
from pyflash.op.variants.jit import default_config
from pyflash.third_party.cuda import CudaError, find_tool
from pyflash.variant.library import named

SCORES = 64  # of a thread, in a block
WAYS = 2  # the block as it comes, and computed once more after an overflow


@pytest.mark.parametrize(("name", "loads"), [("t5_bias", 34), ("documents", 18)])
def test_a_pair_takes_no_address_of_its_own(name, loads, built_arch, uncaptured):
    try:
        find_tool("cuobjdump")
    except CudaError as error:
        pytest.skip(str(error))
    config = default_config(DType.FP16, 128, built_arch)
    assert config.B_r // config.n_consumers * config.B_c // 128 == SCORES
    with uncaptured():
        (kernel,) = compiled_kernels(config, built_arch, variant=named(name).variant)
    assert kernel.spill_store_bytes == kernel.spill_load_bytes == 0
    loop = kernel.kernel.inside(kernel.kernel.main_loop)
    found = sum(instruction.opcode.startswith("LDG") for instruction in loop)
    assert loads <= found <= WAYS * loads + 8
