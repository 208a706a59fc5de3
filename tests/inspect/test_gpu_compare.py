"""GEMMs of cutlass_library and fused attention, measured side by side."""

from __future__ import annotations

import pytest

from pyflash.compare import gemms_of
from pyflash.compare.generated import operation_names, run_generated
from pyflash.config import Arch, DType
from pyflash.op.selection import Problem

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(
        batch=2,
        heads_q=16,
        heads_kv=16,
        seqlen_q=1024,
        seqlen_k=1024,
        d_head=128,
        dtype=DType.BF16,
    )


def test_generated_gemms_are_right_and_as_fast_as_memory_allows_at_most(problem):
    """One kernel of SM80 atoms for QK^T and PV each: compiled, checked, timed."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    arch = Arch.of(10 * major + minor)
    for gemm in gemms_of(problem):
        names = operation_names(gemm, arch)[:1]
        profile = run_generated(gemm, torch.device("cuda"), n_samples=5, names=names)
        assert profile.refused == ()
        (row,) = profile.rows
        assert row.verified
        assert (row.provider, row.operation) == ("cutlass_library", names[0])
        assert (row.bytes, row.flops) == (gemm.bytes, gemm.flops)
        assert 1 < row.gflops / 1e3 < 2000
