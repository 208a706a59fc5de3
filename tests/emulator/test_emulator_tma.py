"""TMA in and out on the emulator, with every swizzle, by a kernel that is made for it."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.emulated_sm90 import BEST

from pyflash.codegen import toolchain
from pyflash.codegen.compilation import Compilation, compile_all
from pyflash.codegen.emulated import link_with_machine
from pyflash.emulator import ORDERS
from pyflash.emulator.run import run_library
from pyflash.inspect.sass import disassemble
from pyflash.third_party.cuda import CudaError

SOURCE = Path(__file__).parent.parent / "support" / "negate_kernel.cpp"
GPU_SOURCE = """
#include "tests/support/negate_kernel.h"

__global__ void negate_kernel(__grid_constant__ pyflash::negate::Params const params) {
  pyflash::negate::negate_rows(params, pyflash::negate::kNone);
}
"""
ROWS = 32  # of a CTA

# What is left out, the number that the kernel knows it by, and what has to be found.
BUGS = {
    "proxy fence": (1, "missing_proxy_fence", {"O_s2g", "O_r2s"}),
    "barrier": (2, "race", {"O_s2g", "O_r2s"}),
    "commit": (3, "copy_never_awaited", {"O_s2g"}),
    "wait": (4, "copy_never_awaited", {"O_s2g"}),
    "wait before the buffer is used again": (5, "race", {"O_s2g", "O_r2s"}),
}


@pytest.fixture(scope="module")
def library() -> Path:
    text = SOURCE.read_text()
    return link_with_machine(
        [Compilation("negate", "negate", text, toolchain.emulator_compiler())]
    )[0]


def run(library, seqlen, d_head, order="ascending"):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, seqlen, 1, d_head, generator=generator).half() for _ in range(3))
    out, _, report = run_library(library, (q, k, v), BEST, order=order, seed=1)
    return q, out, report


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("d_head", [8, 16, 32, 64])
@pytest.mark.parametrize("seqlen", [ROWS, 77])
def test_boxes_go_in_and_out(library, seqlen, d_head, order):
    q, out, report = run(library, seqlen, d_head, order)
    report.check()
    assert torch.equal(out, -q)
    n_ctas = -(-seqlen // ROWS)
    counts = report.counts
    assert (counts.tma_boxes, counts.tma_stores) == (n_ctas, n_ctas)
    assert counts.tma_bytes == counts.tma_stored_bytes == n_ctas * ROWS * d_head * 2
    for site, path in (("Q_g2s", "global_load"), ("O_s2g", "global_store")):
        traffic = report.sites[site][path]
        assert traffic.bytes == seqlen * d_head * 2  # and nothing outside the extents
    # Rows of 16 bytes one after another, whatever the swizzle.
    for site, path in (("Q_s2r", "shared_load"), ("O_r2s", "shared_store")):
        assert report.sites[site][path].max_degree == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("left_out", BUGS)
def test_what_is_left_out_is_found(library, left_out, order):
    number, kind, sites = BUGS[left_out]
    switch = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "bug")
    switch.value = number
    try:
        _, _, report = run(library, 77, 64, order)
    finally:
        switch.value = 0
    assert any(f.kind == kind and f.sites == sites for f in report.findings), report.findings


def test_it_is_instructions_on_a_gpu(built_arch, uncaptured):
    """The device layer's TMA stores, which no kernel of the package has."""
    compiler = toolchain.kernel_compiler(
        BEST.family.targets([built_arch]), toolchain.cutlass_identity()
    )
    compiler = dataclasses.replace(compiler, flags=(*compiler.flags, "-cubin"))
    compilation = Compilation("negate for sm_90a", "negate_gpu", GPU_SOURCE, compiler)
    with uncaptured():
        assert not compile_all([compilation], "a kernel with TMA stores")
    try:
        (kernel,) = disassemble(compilation.object)
    except CudaError as error:
        pytest.skip(str(error))
    opcodes = {instruction.opcode for instruction in kernel.instructions}
    # Load, store, the commit of a group of stores and the wait for it, the proxy fence.
    assert opcodes >= {
        "UTMALDG.2D", "UTMASTG.2D", "UTMACMDFLUSH", "DEPBAR.LE", "FENCE.VIEW.ASYNC.S",
    }  # fmt: skip
