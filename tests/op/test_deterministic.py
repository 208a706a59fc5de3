"""The option `deterministic`: it reaches the backward of every function, own kernels take it, and
PyTorch's kernels are refused unless its switch is on."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import pyflash
from pyflash.compat import flash_attn
from pyflash.op.backward import cuda, kernels, refuse_what_has_no_gradients
from pyflash.op.backward.choice import By, Choice, choose, switch_is_on

STARTS = torch.tensor([0, 5, 16], dtype=torch.int32)
USED = torch.tensor([7, 16], dtype=torch.int32)
TABLE = pyflash.variant.parse("biased(table: f32[1]): s + table[h]")
FUNCTIONS = {
    "attention": lambda q, k, v, on: pyflash.attention(q, k, v, causal=True, deterministic=on),
    "used rows": lambda q, k, v, on: pyflash.attention(q, k, v, seqlens_k=USED, deterministic=on),
    "packed": lambda q, k, v, on: pyflash.attention_varlen(
        q[0], k[0], v[0], STARTS, STARTS, 16, 16, deterministic=on
    ),
    "sdpa": lambda q, k, v, on: pyflash.sdpa(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, deterministic=on
    ),
    "flex": lambda q, k, v, on: pyflash.flex_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), kernel_options={"deterministic": on}
    ),
    "variant": lambda q, k, v, on: pyflash.attention(
        q, k, v, variant=TABLE, tensors={"table": torch.ones(2)}, deterministic=on
    ),
    "flash_attn": lambda q, k, v, on: flash_attn.flash_attn_func(q, k, v, deterministic=on),
}


def leaves(device: str = "cpu") -> list[torch.Tensor]:
    torch.manual_seed(0)
    make = torch.randn if device == "cpu" else torch.empty
    return [
        make(2, 16, 2, 16, dtype=torch.float16, device=device).requires_grad_() for _ in range(3)
    ]


@contextlib.contextmanager
def switch(warn_only: bool = False):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Told(TorchDispatchMode):
    """What the ops of gradients are told."""

    def __init__(self):
        super().__init__()
        self.values = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op in (torch.ops.pyflash.bwd.default, torch.ops.pyflash.bwd_varlen.default):
            self.values.append(kwargs.get("deterministic", False))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_on_the_cpu(name):
    found = []
    for deterministic in (False, True, True):
        inputs = leaves()
        out = FUNCTIONS[name](*inputs, deterministic)
        with Told() as told:
            found.append(torch.autograd.grad(out, inputs, torch.ones_like(out)))
        assert told.values == ([] if name == "variant" else [deterministic])
    for plain, first, second in zip(*found, strict=True):
        assert plain.abs().sum() > 0
        assert torch.equal(plain, first)
        assert torch.equal(first, second)


def test_forward_on_a_gpu_refuses_what_no_kernel_serves():
    """Here no kernel is built, so that PyTorch's would run."""
    words = (
        "^pyflash: deterministic = True has no gradients on a GPU: expected False, or "
        r"torch.use_deterministic_algorithms\(True\), or tensors that do not require gradients"
    )
    with FakeTensorMode():
        inputs = leaves("cuda")
        with pytest.raises(RuntimeError, match=words):
            pyflash.attention(*inputs, deterministic=True)
        with torch.no_grad():
            pyflash.attention(*inputs, deterministic=True)
        with switch():
            refuse_what_has_no_gradients(*inputs[:2], (), {"deterministic": True})
        with switch(warn_only=True), pytest.raises(RuntimeError, match=words):
            pyflash.attention(*inputs, deterministic=True)


def test_the_backward_on_a_gpu_refuses_pytorchs_kernels(monkeypatch):
    """The switch was on in forward, and is off by now."""
    monkeypatch.setattr(cuda, "choose", lambda *_: Choice(By.FLASH, "", "none is built"))
    monkeypatch.setattr(cuda, "_borrowed", lambda *_, **__: "borrowed")
    inputs = leaves()
    out, lse = pyflash.attention(*inputs, return_lse=True)
    saved = (out, out, lse, *inputs)
    with pytest.raises(RuntimeError, match=r"sums in one order only under the switch \(no kernel"):
        cuda.bwd(*saved, deterministic=True)
    with switch():
        assert cuda.bwd(*saved, deterministic=True) == "borrowed"
    assert cuda.bwd(*saved) == "borrowed"


@pytest.mark.parametrize("by", ["the option", "the switch", "neither"])
def test_own_kernels_are_told(monkeypatch, by):
    told = []
    monkeypatch.setattr(torch.ops.pyflash, "run_backward", lambda *_, **given: told.append(given))
    inputs = [x.detach() for x in leaves()]
    out, lse = pyflash.attention(*inputs, return_lse=True)
    options = {"deterministic": True} if by == "the option" else {}
    with switch() if by == "the switch" else contextlib.nullcontext():
        kernels.bwd(out, out, lse, *inputs, **options)
    assert told == [{} if by == "neither" else {"deterministic": True}]


def test_cudnn_is_not_chosen(monkeypatch):
    monkeypatch.setattr("pyflash.op.backward.cudnn.refusal", lambda *_: None)
    problem = kernels.problem_of(*leaves()[:2], (), {})
    device = torch.device("cuda", 0)
    assert choose(device, problem).by is By.CUDNN
    chosen = choose(device, problem | {"deterministic": True})
    assert (chosen.by, chosen.not_cudnn) == (By.FLASH, "deterministic is set")


def test_gradients_of_what_a_variant_captures_are_refused():
    inputs = [x.detach() for x in leaves()]
    table = torch.ones(2, requires_grad=True)
    call = {"variant": TABLE, "tensors": {"table": table}, "deterministic": True}
    with pytest.raises(RuntimeError, match="deterministic came with a variant, whose gradients"):
        pyflash.attention(*inputs, **call)
    with switch():
        assert pyflash.attention(*inputs, **call).requires_grad


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("of_pytorch", [None, False, True])
def test_a_compiled_variant_reads_pytorchs_switch(of_pytorch, asked):
    """of_pytorch: whether the switch only warns; None: it is off."""
    inputs = leaves()
    given = {"variant": TABLE, "tensors": {"table": torch.ones(2)}, "deterministic": asked}

    def call(q, k, v):
        return switch_is_on(), pyflash.attention(q, k, v, **given)

    with contextlib.nullcontext() if of_pytorch is None else switch(of_pytorch):
        is_on, out = torch.compile(call, fullgraph=True, backend="aot_eager")(*inputs)
        assert is_on is (of_pytorch is False)
        assert torch.equal(out, call(*inputs)[1])
        assert len(torch.autograd.grad(out.sum(), inputs)) == 3


def test_it_is_in_the_compiled_graph_of_the_backward():
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def kept(graph, _):
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, backend=aot_autograd(fw_compiler=kept, bw_compiler=kept))
    def call(q, k, v):
        return pyflash.attention(q, k, v, deterministic=True)

    inputs = leaves()
    call(*inputs).sum().backward()
    (backward,) = [
        node
        for graph in graphs
        for node in graph.graph.nodes
        if node.target is torch.ops.pyflash.bwd.default
    ]
    assert backward.kwargs["deterministic"] is True
    assert inputs[0].grad.abs().sum() > 0
