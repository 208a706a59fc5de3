"""Every flag of a config really changes the machine code."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from support.machine_code import BEST, CONFIGS

from pyflash import DType, Features, FlashForwardKernelConfig
from pyflash.codegen.build import kernel_compilations
from pyflash.config.arch import Arch
from pyflash.third_party.cuda import CudaError, find_tool


@pytest.fixture(scope="module")
def cuobjdump() -> str:
    try:
        return find_tool("cuobjdump")
    except CudaError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def sass(cuobjdump, plain_kernels) -> dict[FlashForwardKernelConfig, list[str]]:
    """The instructions of each config's plain kernel, without what only names or places them."""
    objects = {kernel.object for kernel in plain_kernels.values()}
    code = {name: text for path in objects for name, text in _functions(cuobjdump, path).items()}
    return {config: _instructions(code[k.function]) for config, k in plain_kernels.items()}


@pytest.fixture(scope="module")
def combinations(
    cuobjdump, built_library: Path, built_arch: Arch, library_configs
) -> dict[FlashForwardKernelConfig, dict[Features, list[str]]]:
    """The same of every combination of features, for the configs of `built_library`."""
    compilations = kernel_compilations({config: [built_arch] for config in library_configs})
    return {config: _kernels(cuobjdump, c.object) for config, c in compilations.items()}


def _kernels(cuobjdump: Path, object_file: Path) -> dict[Features, list[str]]:
    functions = _functions(cuobjdump, object_file)
    return {Features.of_kernel(name): _instructions(text) for name, text in functions.items()}


def _functions(cuobjdump: Path, object_file: Path) -> dict[str, str]:
    """The listing of each function, by its mangled name."""
    listing = subprocess.run(
        [cuobjdump, "-sass", object_file],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    _, *functions = re.split(r"^\s+Function : ", listing, flags=re.MULTILINE)
    return {f.partition("\n")[0].strip(): f for f in functions}


def _instructions(function: str) -> list[str]:
    # "        /*0010*/                   LDC R1, c[0x0][0x28] ;   /* encoding */"
    instructions = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;", function, re.MULTILINE)
    assert len(instructions) > 500
    return instructions


def count(instructions: list[str], opcode: str) -> int:
    """Instructions, predicated or not, whose opcode begins so."""
    return sum(bool(re.match(rf"(@!?U?P\d+ )?{re.escape(opcode)}\b", i)) for i in instructions)


def test_the_configs_pair_up_in_every_field():
    varied = {
        next(iter(names))
        for one, other in itertools.combinations(CONFIGS, 2)
        if len(names := {n for n in BEST.field_types() if getattr(one, n) != getattr(other, n)})
        == 1
    }
    assert varied == BEST.field_types().keys()
    assert all(config == config.canonical() for config in CONFIGS)


def test_no_two_configs_have_the_same_machine_code(sass):
    codes = Counter("\n".join(instructions) for instructions in sass.values())
    same = [
        [str(config) for config, instructions in sass.items() if "\n".join(instructions) == code]
        for code, n_configs in codes.items()
        if n_configs > 1
    ]
    assert not same
    assert len(codes) == len(CONFIGS)


def test_the_combinations_of_a_config_differ(combinations):
    for config, of_config in combinations.items():
        codes = {"\n".join(instructions) for instructions in of_config.values()}
        assert len(codes) == len(of_config), str(config)
        assert len(codes) == len(config.family.built_features(config))


def test_only_a_cap_takes_a_root_of_each_score(combinations):
    """tanh is sinh by its cosh."""
    for config, of_config in combinations.items():
        n_scores = config.B_r * config.B_c // config.n_threads  # of a thread, in one block
        for features, instructions in of_config.items():
            n_roots = count(instructions, "MUFU.RSQ")
            assert (n_roots >= n_scores) == features.softcap, f"{config}, {features}"


def test_predicated_columns_cost_little(combinations):
    """A narrower d_head predicates copies and stores, and nothing else."""
    for config, of_config in combinations.items():
        plain, predicated = (
            len(of_config[Features.parse(name)]) for name in ("plain", "predicated_head_dim")
        )
        assert predicated <= 1.05 * plain, f"{config}: {plain}, {predicated}"


def test_async_copy_is_cp_async(sass):
    """LDGSTS is cp.async; a copy through registers is LDG.E.128 and STS.128."""
    through_registers = sass[BEST.replace(eager_load_blocks=False, async_copy=False)]
    for config, instructions in sass.items():
        n_async = count(instructions, "LDGSTS.E")
        assert (n_async > 0) == config.async_copy, str(config)
    assert count(through_registers, "LDG.E.128") > 0
    assert count(through_registers, "STS.128") > 0


def test_dtype_is_that_of_the_mma(sass):
    opcodes = {DType.FP16: "HMMA.16816.F32", DType.BF16: "HMMA.16816.F32.BF16"}
    for config, instructions in sass.items():
        n_mma = count(instructions, opcodes[config.dtype] + " ")
        assert n_mma > 0, str(config)
        assert n_mma == count(instructions, "HMMA"), str(config)


def test_optimized_softmax_takes_fewer_instructions_per_exponential(sass):
    step_5 = BEST.replace(
        Q_mma_load_K_tiles=2, mma_double_buffer_loads=True, optimized_softmax=False
    )
    plain, optimized = sass[step_5], sass[step_5.replace(optimized_softmax=True)]
    # e^x is 2^(x * log2 e): a product that the folded scale saves.
    for instructions in (plain, optimized):
        assert count(instructions, "MUFU.EX2") > 0

    def products(instructions: list[str]) -> float:
        return count(instructions, "FMUL") / count(instructions, "MUFU.EX2")

    assert products(optimized) < products(plain)


def test_stages_of_q_are_loaded_again_for_each_block(sass):
    """Q kept in registers is loaded once; a staged Q beside every stage of K."""
    kept, staged = sass[BEST], sass[BEST.replace(Q_mma_load_K_tiles=2)]
    assert count(staged, "LDSM") >= count(kept, "LDSM")
    assert first(staged, "HMMA", after="LDSM") < first(kept, "HMMA", after="LDSM")


def first(instructions: list[str], opcode: str, after: str) -> int:
    """How many `after` come before the first `opcode`."""
    position = next(i for i, text in enumerate(instructions) if text.startswith(opcode))
    return count(instructions[:position], after)
