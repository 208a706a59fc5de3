"""The SM80 backward on a GPU: every config beside fp64, and the same bits on request. Needs
`pyflash build --set backward_sm80`."""

from __future__ import annotations

import pytest
import torch
from support.backward_cases import CASES, Case, expected, make
from support.gpu_kernels import n_that_differ
from torch import Tensor

from pyflash import attention, named_set
from pyflash.config import KernelConfig
from pyflash.op.backward import kernels
from pyflash.op.built import built_configs

pytestmark = pytest.mark.gpu

_DTYPES = {torch.float16: "FP16", torch.bfloat16: "BF16"}
RUNS = [
    (case, config)
    for case in CASES
    for config in named_set("backward_sm80")
    if config.dtype.name == _DTYPES[case.dtype]
    and config.d_head // 2 < case.d_head <= config.d_head
]


def _forward(case: Case, config: KernelConfig, qkv: list[Tensor]) -> tuple[Tensor, Tensor]:
    if str(config) not in map(str, built_configs("backward")):
        pytest.skip(f"{config} is not built")
    with torch.no_grad():
        return attention(*qkv, return_lse=True, **case.all_options)


def _gradients(case: Case, config: KernelConfig, qkv: list[Tensor], grad_out: Tensor):
    out, lse = _forward(case, config, qkv)
    return kernels.bwd(grad_out, out, lse, *qkv, config=str(config), **case.all_options)


@pytest.mark.parametrize(("case", "config"), RUNS, ids=str)
def test_gradients(case: Case, config: KernelConfig) -> None:
    qkv, grad_out = make(case, "cuda")
    expected(case, qkv, grad_out).check(_gradients(case, config, qkv, grad_out))


@pytest.mark.parametrize(
    ("case", "config"), [run for run in RUNS if run[0].size in ("gqa", "fewer_keys")], ids=str
)
def test_deterministic_gradients_have_the_same_bits(case: Case, config: KernelConfig) -> None:
    qkv, grad_out = make(case, "cuda")
    torch.use_deterministic_algorithms(True)
    try:
        first = _gradients(case, config, qkv, grad_out)
        for _ in range(5):
            again = _gradients(case, config, qkv, grad_out)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)
    expected(case, qkv, grad_out).check(first)


@pytest.mark.parametrize(
    ("case", "config"),
    [run for run in RUNS if run[0].size == "many_tiles" and run[0].mask in ("full", "causal")],
    ids=str,
)
def test_a_thousand_deterministic_gradients_have_the_same_bits(
    case: Case, config: KernelConfig
) -> None:
    qkv, grad_out = make(case, "cuda")
    results = (grad_out, *_forward(case, config, qkv))
    options = {"config": str(config), "deterministic": True, **case.all_options}
    first = kernels.bwd(*results, *qkv, **options)
    expected(case, qkv, grad_out).check(first)
    assert n_that_differ(lambda: kernels.bwd(*results, *qkv, **options), first, 1000) == 0
