"""The op library and the DSL read and print configs alike."""

import dataclasses
import subprocess

import pytest
from support.headers import ROOT, includes

from pyflash import FlashForwardKernelConfig, Space, named_set
from pyflash.config.sets import SET_NAMES

CONFIGS = [
    *dict.fromkeys(config for name in SET_NAMES for config in named_set(name)),
    # Every flag by itself, and numbers that no set has.
    *Space(dtype="BF16", d_head=64, B_r=64, B_c=32, n_warps=4).filter(
        lambda c: c.V_mma_load_K_tiles == 4
    ),
    FlashForwardKernelConfig.parse("(FP16, 12345, 1, 23456, 7): load_10_200_3000_tiles"),
]


@pytest.fixture(scope="module")
def read_by_the_op_library(tmp_path_factory) -> list[str]:
    """A line for each config: its fields, a tab, its short form."""
    program = tmp_path_factory.mktemp("print_configs") / "print_configs"
    names = ("tests/support/print_configs.cpp", "cute_kernels/host/short_form.cpp")
    sources = [ROOT / name for name in names]
    subprocess.run(["g++", "-std=c++20", *includes(), *sources, "-o", program], check=True)
    text = "\n".join(map(str, CONFIGS))
    result = subprocess.run([program], input=text, check=True, capture_output=True, text=True)
    return result.stdout.splitlines()


def test_fields_and_text_are_the_same(read_by_the_op_library):
    assert read_by_the_op_library == [
        " ".join(str(int(field)) for field in dataclasses.astuple(config)) + f" \t{config}"
        for config in CONFIGS
    ]
