"""For each field of a config: two that differ in it alone, and the instructions that change."""

from __future__ import annotations

import functools
import itertools

import pytest
from support.machine_code import CONFIGS

from pyflash.config import FlashForwardKernelConfig
from pyflash.inspect import sass
from pyflash.inspect.compiled import kernels_of
from pyflash.inspect.diff import diff_of
from pyflash.third_party.cuda import CudaError, find_tool

FIELDS = tuple(FlashForwardKernelConfig.field_types())
PAIRS = {
    next(iter(names)): pair
    for pair in itertools.combinations(CONFIGS, 2)
    if len(names := {n for n in FIELDS if getattr(pair[0], n) != getattr(pair[1], n)}) == 1
}


_disassembled = functools.cache(sass.disassemble)


@pytest.mark.parametrize("field", FIELDS)
def test_a_diff_names_the_instructions_that_a_field_changes(
    field, plain_kernels, built_arch, monkeypatch
):
    monkeypatch.setattr(sass, "disassemble", _disassembled)  # an object has several kernels
    try:
        find_tool("cuobjdump")
    except CudaError as error:
        pytest.skip(str(error))
    configs = PAIRS[field]
    kernels = []
    for config in configs:
        (kernel,) = kernels_of(config, built_arch, plain_kernels[config])
        kernels.append(kernel)
    result = diff_of(configs, tuple(kernels))
    assert set(result.fields) == {field}
    assert not result.same
    assert result.changed
    assert all(change.all[0] != change.all[1] or change.loop[0] != change.loop[1]
               for change in result.changed)  # fmt: skip
    for kernel in kernels:
        assert kernel.loop.mix["mma"] > 0
        assert kernel.kernel.main_loop is not None
