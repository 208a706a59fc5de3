"""Kernels of cubins on a GPU: the results of the library's, in streams and graphs too."""

from pathlib import Path

import pytest
import torch

from pyflash import Features, attention, built_configs
from pyflash.config import parse
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


# Warps alone; warps with roles, persistent CTAs; packed heads and clusters.
KINDS = {
    "sm80": lambda config: not config.tag,
    "sm90": lambda config: config.tag and config.persistent,
    "sm90 packed": lambda config: config.tag and config.pack_gqa,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cubin_computes_what_the_library_does(arch, kind):
    """With several queries and with one, whose splits a cluster of CTAs may merge."""
    built = (row.config for row in built_configs().values() if row.covers(Features(), arch))
    of_kind = (c for c in built if c.d_head == 128 and c.dtype.name == "FP16" and KINDS[kind](c))
    config = next(of_kind, None)
    if config is None:
        pytest.skip(f"no config of this kind is built for sm_{arch}")
    k, v = torch.randn(2, 2, 1000, 4, 128, device="cuda", dtype=torch.float16)
    q, one_query = (
        torch.randn(2, seqlen, 8, 128, device="cuda", dtype=torch.float16) for seqlen in (1000, 1)
    )
    problems = [
        (q, {}),
        (q, {"causal": True}),
        (q, {"softcap": 5.0}),
        (q, {"num_splits": 3}),
        (one_query, {"num_splits": 4}),
        (one_query, {"num_splits": 16}),
        (one_query, {"num_splits": 17}),
    ]

    def results():
        return [
            attention(q, k, v, config=str(config), return_lse=True, **options)
            for q, options in problems
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


@pytest.mark.parametrize(
    "config",
    [
        "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_3",
        "(BF16, 64, 128, 64, 2): sm90+stages_3+overlap+pingpong",
    ],
)
def test_a_config_that_no_library_has(arch, config):
    from pyflash.op.reference import expect

    if parse(config).violations(arch):
        pytest.skip(f"it is not for sm_{arch}")
    load_cubin(compiled(config, ["plain"], arch))
    q, k, v = torch.randn(3, 1, 333, 2, 64, device="cuda", dtype=torch.bfloat16)
    expect(q, k, v).check(*attention(q, k, v, config=config, return_lse=True))
    with pytest.raises(RuntimeError, match="right_window"):
        attention(q, k, v, config=config, causal=True)
