"""The machine code of an SM90 kernel: instructions, no spills, the order of its waits."""

from __future__ import annotations

import re
import subprocess

import pytest

from pyflash import Features, FlashForwardSm90Config
from pyflash.codegen import emit, toolchain
from pyflash.codegen.build import BuildError
from pyflash.codegen.compilation import Compilation, compile_all
from pyflash.config.sm90 import budgets
from pyflash.config.sm90_forward.resources import register_demand
from pyflash.inspect.compiled import kernels_of
from pyflash.third_party.cuda import CudaError, find_tool

# The one whose registers are tightest.
CONFIG = FlashForwardSm90Config.parse(
    "(BF16, 64, 256, 64, 4): sm90+stages_3+overlap+pingpong+persistent+rescale_threshold"
)
FEATURES = [Features(), Features.parse("right_window")]
SCORES = CONFIG.B_r // CONFIG.n_consumers * CONFIG.B_c // 128  # of a thread, in a block


@pytest.fixture(scope="module")
def compilation(built_arch, uncaptured) -> Compilation:
    """Device code alone, for sm_90a."""
    family = CONFIG.family
    targets = family.targets([built_arch])
    compilation = Compilation(
        label=f"{CONFIG}, cubin",
        stem=f"cubin_{emit.file_stem(CONFIG)}",
        text=emit.emit_config(CONFIG, FEATURES),
        compiler=toolchain.device_compiler(targets, toolchain.cutlass_identity(), "-cubin"),
    )
    with uncaptured():
        if failures := compile_all([compilation], "an SM90 config for sm_90a"):
            raise BuildError(failures, 1)
    return compilation


@pytest.fixture(scope="module")
def sass(compilation) -> dict[Features, list[str]]:
    """The instructions of each kernel."""
    try:
        cuobjdump = find_tool("cuobjdump")
    except CudaError as error:
        pytest.skip(str(error))
    command = [cuobjdump, "-sass", compilation.object]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, *functions = re.split(r"^\s+Function : ", listing, flags=re.MULTILINE)
    return {
        Features.of_kernel(f.partition("\n")[0]): re.findall(
            r"^\s+/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;", f, re.MULTILINE
        )
        for f in functions
    }


def test_nothing_spills_and_the_model_is_right(compilation, built_arch):
    resources = CONFIG.resources(built_arch)
    assert not resources.spill_predicted
    kernels = compilation.record["kernels"]
    assert len(kernels) == len(FEATURES)
    for kernel in kernels:
        assert kernel["registers"] == resources.registers
        assert kernel["spill_store_bytes"] == kernel["spill_load_bytes"] == 0
        # Scores that are computed once more.
        assert kernel["stack_bytes"] <= 4 * SCORES
        assert kernel["static_smem_bytes"] == 0


def test_ptxas_serialises_no_mma(compilation):
    """Its advisories C7510 to C7519 say that it waits for every MMA."""
    assert not re.findall(r"\(C75\d\d\)", compilation.log.read_text())


def test_instructions(sass, built_arch):
    assert set(sass) == set(FEATURES)
    budget = budgets(CONFIG.n_consumers, built_arch)
    for instructions in sass.values():
        text = "\n".join(instructions)
        assert re.search(rf"HGMMA\.64x{CONFIG.B_c}x16\.F32\.BF16", text)  # Q K^T
        assert re.search(rf"HGMMA\.64x{CONFIG.d_head}x16\.F32\.BF16", text)  # P V
        assert "UTMALDG" in text
        assert not re.search(r"\b(HMMA|LDGSTS|LDSM)\b", text)
        assert text.count("SR_CgaCtaId") <= 1  # the address of shared memory is not computed again
        for registers in (budget.producer, budget.consumer):
            assert re.search(rf"USETMAXREG\..*\b{registers:#x}\b", text)


def test_each_role_keeps_to_its_registers(compilation, built_arch):
    """ptxas's figure is that of the kernel's start; setmaxnreg moves the rest."""
    budget = budgets(CONFIG.n_consumers, built_arch)
    expected = sorted({budget.entry, budget.producer, budget.consumer})
    kernels = kernels_of(CONFIG, built_arch, compilation)
    assert len(kernels) == len(FEATURES)
    for kernel in kernels:
        assert [share.budget for share in kernel.shares] == expected
        assert all(share.fits for share in kernel.shares), list(map(str, kernel.shares))
        # Accumulators and A operands, which no model can do without.
        demand = register_demand(CONFIG)
        assert kernel.shares[-1].used >= demand.S + demand.O + demand.P


def test_PV_is_waited_for_after_the_exponentials(sass):
    """In the mainloop: QK^T and PV are issued, QK^T is waited for, exponentials, then PV. A
    compiler that moved the last wait up would leave nothing for PV to run beside."""
    for features, instructions in sass.items():
        events = list(_events(instructions))
        both_issued = [i for i, event in enumerate(events) if event == "one MMA pending"]
        assert both_issued, str(features)
        for i in both_issued:
            n_exponentials = 0
            for event in events[i + 1 :]:
                if event == "none pending":
                    break
                n_exponentials += event == "exponential"
            assert n_exponentials >= 2 * SCORES, str(features)  # a masked block and another


def _events(instructions):
    for text in instructions:
        if match := re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x[01])", text):
            yield {"0x0": "none pending", "0x1": "one MMA pending"}[match[1]]
        elif "MUFU.EX2" in text:
            yield "exponential"
