"""The machine code of kernels with a variant: few spills, and a load for two rows' distances."""

from __future__ import annotations

import re

import pytest

from pyflash.config import DType
from pyflash.inspect.compiled import compiled_kernels
from pyflash.op.variants.jit import default_config
from pyflash.third_party.cuda import CudaError, find_tool
from pyflash.variant.library import named
from pyflash.variant.needs import needs_of


def is_of_one_number(instruction):
    """Of local memory at a fixed place, as what is spilled has."""
    return re.search(r"\[R1[+\]]", instruction.operands) and not instruction.opcode.endswith(
        (".64", ".128")
    )


# Ways through a block: as it comes, and computed once more after an overflow; a score function has
# one without a branch, too.
# Kernels of documents load two keys a lane for a block, and spill a few numbers of a tile.
@pytest.mark.parametrize(
    ("name", "scores", "loads", "ways", "spilled"),
    [("t5_bias", 64, 34, 3, 0), ("documents", 32, 1, 2, 48)],
)
def test_a_pair_takes_no_address_of_its_own(
    name, scores, loads, ways, spilled, built_arch, uncaptured
):
    """scores: of a thread, in a block. spilled: bytes, at most."""
    try:
        find_tool("cuobjdump")
    except CudaError as error:
        pytest.skip(str(error))
    variant = named(name).variant
    config = default_config(DType.FP16, 128, built_arch, needs_of(variant))
    assert config.B_r // config.n_consumers * config.B_c // 128 == scores
    with uncaptured():
        (kernel,) = compiled_kernels(config, built_arch, variant=variant)
    assert max(kernel.spill_store_bytes, kernel.spill_load_bytes) <= spilled
    loop = kernel.kernel.inside(kernel.kernel.main_loop)
    # Vectors of local memory are an array's.
    assert not [x for x in loop if x.opcode.startswith(("STL", "LDL")) and is_of_one_number(x)]
    found = sum(instruction.opcode.startswith("LDG") for instruction in loop)
    assert loads <= found <= ways * loads + 8
