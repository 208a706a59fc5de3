"""Gradients with variants and with dropout on the CPU in several threads at once, each the thread's
first call: the same bits as alone, and draws of the generator that no two share."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from support.gradient_calls import CALLS, close, in_threads
from torch._subclasses.schema_check_mode import SchemaCheckMode

import pyflash
from pyflash.op.autograd import TORCH_API, public_api
from pyflash.op.variants import autograd as variant_autograd
from pyflash.op.variants.reference import gradients


@pytest.mark.parametrize("name", CALLS)
def test_threads_at_once_compute_what_one_computes(name):
    call = CALLS[name]
    inputs = [call.inputs("cpu", seed) for seed in range(3)]
    results = in_threads([lambda x=x: call.results(*x) for x in inputs])
    expected = [call.results(*x) for x in inputs]
    for found, other in zip(results, expected, strict=True):
        assert all(map(torch.equal, found, other))
    assert not close(expected[0], expected[1])


@pytest.mark.skipif(TORCH_API == "public", reason="needs private parts of torch")
def test_the_formula_runs_in_the_thread_of_autograd(monkeypatch):
    """Another one would wait for it on a GPU, whose backward passes have one thread."""
    threads = []

    def noting(*arguments, **options):
        threads.append(threading.get_ident())
        return gradients(*arguments, **options)

    monkeypatch.setattr(variant_autograd, "gradients_of_formula", noting)
    q = torch.randn(1, 5, 2, 16, dtype=torch.float16, requires_grad=True)
    pyflash.attention(q, q, q, variant="later: s + k").sum().backward()
    assert threads == [threading.get_ident()]


def test_without_private_parts_of_torch_the_formula_is_refused_on_a_gpu():
    with pytest.raises(RuntimeError, match="expected backward='', by kernels, or another version"):
        public_api.above_autograd(SimpleNamespace(is_cuda=True), list)


def refuse(_):
    raise AssertionError("a hook of the caller's saw what the formula saves")


@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autograd.graph.saved_tensors_hooks(refuse, refuse),
        lambda: torch.device("meta"),
        torch.enable_grad,
        SchemaCheckMode,
    ],
    ids=["autocast", "hooks", "device", "grad", "mode"],
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("options", [(), ("softcap",), ("sinks",), ("softcap", "sinks")])
def test_the_formula_is_that_of_the_op_whatever_is_around(around, packed, options):
    shape = (40, 2, 64) if packed else (1, 40, 2, 64)
    q, k, v = (torch.randn(shape).half().requires_grad_() for _ in "qkv")
    slope, sinks = (torch.tensor([0.5, 1.0], requires_grad=True) for _ in range(2))
    given = {name: {"softcap": 3.0, "sinks": sinks}[name] for name in options}
    starts = torch.tensor([0, 13, 13, 40], dtype=torch.int32)
    attend = pyflash.attention_varlen if packed else pyflash.attention
    out = attend(
        q, k, v, *((starts, starts, 27, 27) if packed else ()), **given,
        variant="alibi(slope: f32[1]): s + slope[h] * (k - q) where k <= q",
        tensors={"slope": slope},
    )  # fmt: skip
    wanted = [q, k, v, slope, *([sinks] if "sinks" in options else [])]
    asked = (out, wanted, torch.randn_like(out))
    expected = torch.autograd.grad(*asked, retain_graph=True)
    with around():
        found = torch.autograd.grad(*asked, retain_graph=True)
    assert all(map(torch.equal, found, expected))


def test_threads_draw_from_the_generator_one_after_the_other():
    """Equal scores and V = 1 show what is dropped: each of eight calls drops what one of eight in a
    row does."""
    q = torch.zeros(1, 64, 2, 64, dtype=torch.float16)
    v = torch.eye(64, dtype=torch.float16)[:, None].expand(1, 64, 2, 64).contiguous()

    def mask() -> bytes:
        return (pyflash.attention(q, q, v, dropout_p=0.5) > 0).numpy().tobytes()

    torch.manual_seed(7)
    expected = [mask() for _ in range(8)]
    torch.manual_seed(7)
    found = in_threads([mask] * 8)
    assert len(set(expected)) == 8
    assert sorted(found) == sorted(expected)
