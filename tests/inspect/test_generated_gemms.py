"""GEMMs that CUTLASS's generator emits, where there is no profiler."""

from __future__ import annotations

import pytest
from support.profiles import RECORDED, problem_of

from pyflash.compare import gemms_of, read
from pyflash.compare.generated import emit, find_operation, operation_names
from pyflash.config import Arch, DType
from pyflash.third_party.cuda import CudaError, find_nvcc


@pytest.fixture(scope="module", autouse=True)
def nvcc():
    """The generator wants to know its version."""
    try:
        find_nvcc()
    except CudaError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["qk", "pv"])
def test_recorded_kernels_are_among_those_that_are_generated(name):
    gemm = gemms_of(problem_of(4096))[("qk", "pv").index(name)]
    recorded = {row.operation for row in read(RECORDED / f"{name}_4096.gemm.csv").rows}
    assert recorded <= set(operation_names(gemm, Arch.of(90)))


@pytest.mark.parametrize("dtype", list(DType))
def test_every_kernel_is_emitted(dtype):
    for gemm in gemms_of(problem_of(4096, dtype=dtype)):
        names = operation_names(gemm, Arch.of(90))
        assert operation_names(gemm, Arch.of(86)) == [n for n in names if "sm90" not in n]
        texts = [emit(find_operation(name, gemm)) for name in names]
        for name, text in zip(names, texts, strict=True):
            assert text.startswith(f"// {name}\n")
            assert f"GemmUniversalAdapter<{name}>" in text
            assert emit(find_operation(name, gemm)) == text


def test_an_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match="cutlass_library has no GEMM cutlass_some"):
        find_operation("cutlass_some", gemms_of(problem_of(4096))[0])
