"""Kernels of cubins on a GPU: the results of the library's, in streams and graphs too."""

from pathlib import Path

import pytest
import torch

from pyflash import attention, built_configs
from pyflash.config.arch import ARCHS
from pyflash.op.library import load_cubin

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def arch() -> int:
    major, minor = torch.cuda.get_device_capability()
    if major * 10 + minor not in {known.sm for known in ARCHS if not known.ptx_of}:
        pytest.skip(f"no machine code is built for sm_{major}{minor}")
    return major * 10 + minor


def compiled(config, features, arch) -> Path:
    from pyflash.codegen.kernels import compile_kernel
    from pyflash.third_party.cuda import CudaError

    try:
        return compile_kernel(config, features, arch)
    except CudaError as error:
        pytest.skip(str(error))


def test_a_cubin_computes_what_the_library_does(arch):
    built = (row.config for row in built_configs().values() if not row.config.tag)
    config = next((c for c in built if c.d_head == 128 and c.dtype.name == "FP16"), None)
    if config is None:
        pytest.skip("no config of the SM80 family is built")
    q, k, v = torch.randn(3, 2, 1000, 4, 128, device="cuda", dtype=torch.float16)
    problems = [{}, {"causal": True}, {"softcap": 5.0}, {"num_splits": 3}]

    def results():
        return [
            attention(q, k, v, config=str(config), return_lse=True, **options)
            for options in problems
        ]

    of_library = results()
    load_cubin(compiled(config, ["plain", "right_window"], arch))
    assert built_configs()[config].ptx_arch == 0
    for expected, result in zip(of_library, results(), strict=True):
        for one, other in zip(expected, result, strict=True):
            assert torch.equal(one, other)

    # Loaded by now: a launch is captured like any other.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, config=str(config))
    out.zero_()
    graph.replay()
    assert torch.equal(out, of_library[0][0])


def test_a_config_that_no_library_has(arch):
    from pyflash.op.reference import expect

    config = "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_3"
    load_cubin(compiled(config, ["plain"], arch))
    q, k, v = torch.randn(3, 1, 333, 2, 64, device="cuda", dtype=torch.bfloat16)
    expect(q, k, v).check(*attention(q, k, v, config=config, return_lse=True))
    with pytest.raises(RuntimeError, match="right_window"):
        attention(q, k, v, config=config, causal=True)
