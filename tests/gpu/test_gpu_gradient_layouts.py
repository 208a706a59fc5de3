"""Borrowed gradients in every memory layout, before and behind PyTorch's own attention in one
process."""

import subprocess
import sys

import pytest
import torch
from support import gradients
from support.headers import ROOT

from pyflash.op.backward import kernels

pytestmark = pytest.mark.gpu

BORROW = "from pyflash.op.backward import kernels; kernels.choice = lambda *_: ('', 'not asked')"


@pytest.fixture(autouse=True)
def _no_own_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "choice", lambda *_: ("", "not asked"))


every_layout = pytest.mark.parametrize("q", gradients.LAYOUTS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kv", gradients.LAYOUTS)
@every_layout
def test_before_and_behind_cudnn(q, kv, dtype):
    """Pitfall 26: another caller's plans in a library's cache.
    Each pair of layouts of grad_out at a length that no caller had before."""
    found = gradients.in_both_orders(q, kv, dtype)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("order", ["pyflash,cudnn", "cudnn,pyflash"])
@every_layout
def test_in_a_process_of_its_own(q, order):
    """Pitfall 26: another caller's plans in a library's cache."""
    program = (
        f"import torch; from support import gradients as g; {BORROW}; "
        f"p = g.Problem(3, 33, 4, 4, 32, torch.float16, True, ({q!r},) * 3); "
        f"print(g.wrong(p, {tuple(order.split(','))}, (g.AS_OUT,) * 2))"
    )
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = ['.', 'tests']; {program}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_random_layouts_in_one_process():
    """Pitfall 26: another caller's plans in a library's cache.
    3,000 problems by pyflash and PyTorch's cuDNN and flash attention in random
    order, layouts of q, k, v and grad_out drawn independently."""
    found = gradients.fuzz(3000)
    assert not found, f"{len(found)} are wrong\n\n" + "\n".join(found[:20])
