"""The calls of the GPU tests of op backward, on the CPU: what is asked there is right."""

import pytest
import torch
from support.backward_cases import CASES, LAYOUTS, MASKS, SIZES, expected, gradients, make

SMALL = [case for case in CASES if case.size != "many_tiles" and case.dtype == torch.bfloat16]


@pytest.mark.parametrize("case", SMALL[::7], ids=str)
def test_gradients_on_the_cpu(case):
    qkv, grad_out = make(case, "cpu")
    expected(case, qkv, grad_out).check(gradients(case, qkv, grad_out))


@pytest.mark.parametrize("factor", [0.9, 1.1])
@pytest.mark.parametrize("which", range(3))
def test_a_wrong_gradient_is_found(which, factor):
    case = SMALL[0]
    qkv, grad_out = make(case, "cpu")
    found = list(gradients(case, qkv, grad_out))
    found[which] = found[which] * factor
    with pytest.raises(AssertionError, match=f"{('dq', 'dk', 'dv')[which]}: error"):
        expected(case, qkv, grad_out).check(found)


@pytest.mark.parametrize("which", range(3))
def test_a_nan_is_found(which):
    case = SMALL[0]
    qkv, grad_out = make(case, "cpu")
    found = [x.clone() for x in gradients(case, qkv, grad_out)]
    found[which].view(-1)[-1] = torch.nan
    with pytest.raises(AssertionError, match="error nan"):
        expected(case, qkv, grad_out).check(found)


def test_every_part_is_in_some_case():
    for name, values in (("mask", MASKS), ("size", SIZES), ("layout", LAYOUTS)):
        assert {getattr(case, name) for case in CASES} == set(values)
    assert len(set(map(str, CASES))) >= len(CASES) - 2  # two differ by their scale


def test_kernels_that_are_not_built_change_nothing():
    """Nor do they show in what select says."""
    from pyflash.op.backward import kernels

    if kernels.are_built():
        pytest.skip("they are built")
    device = torch.device("cuda")
    if not torch.cuda.is_available():
        config, reason = kernels.choice(device, {})
        assert (config, reason) == ("", "there is no GPU")
