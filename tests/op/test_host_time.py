"""What a step of training asks and runs on the host: the same few things in every call. And where
the short way from autograd to own kernels is not taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import host_time
from support.host_time import frames_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import pyflash
from pyflash.config import named_set
from pyflash.op import answers, backward
from pyflash.op.autograd import TORCH_API, private_api
from pyflash.op.backward import choice, cuda, kernels

private = pytest.mark.skipif(TORCH_API == "public", reason="is of private parts of torch")
MEASURED = str(named_set("backward")[0])
UNMEASURED = str(named_set("backward_sm80")[0])
STARTS = torch.tensor([0, 5, 9], dtype=torch.int32)


def padded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return pyflash.attention(q, k, v, **options)


def packed(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    flat = (x.flatten(0, 1) for x in (q, k, v))
    return pyflash.attention_varlen(*flat, STARTS, STARTS, 5, 5, **options)


def leaves(dtype: torch.dtype = torch.float16) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 9, 4, 16).to(dtype).requires_grad_() for _ in range(3)]


def gradients(run: Callable[..., Tensor], **options: Any) -> tuple[Tensor, ...]:
    inputs = leaves()
    out = run(*inputs, **options)
    return torch.autograd.grad(out, inputs, torch.ones_like(out))


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls on the CPU are asked about, and their gradients computed, as on a GPU that has a kernel
    for them: the one in the list."""
    configs = [MEASURED]

    def bwd(*arguments: Any, packing: Sequence[Any], **options: Any) -> tuple[Tensor, ...]:
        run = cuda.bwd_varlen if packing else cuda.bwd
        return run(*arguments, *packing, **options)

    monkeypatch.setattr(backward.cpu, "kernels", SimpleNamespace(bwd=bwd))
    monkeypatch.setattr(kernels, "choice", lambda *_: (configs[0], "it is said here"))
    monkeypatch.setattr(backward.runs_own, "function", cuda.always_runs_own)
    monkeypatch.setattr(backward.lse_has_gradient, "function", kernels.takes)
    return configs


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often who computes gradients is asked, and who runs."""
    found: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            found[name] += 1
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(cuda, "choose", counted("choose", cuda.choose))
    monkeypatch.setattr(kernels, "bwd", counted("bwd", kernels.bwd))
    monkeypatch.setattr(cuda, "_borrowed", counted("borrowed", lambda *x, **_: x[3:6]))
    at_once = counted("at once", private_api._run_backward)
    monkeypatch.setattr(private_api, "_run_backward", at_once)
    return found


# What is done for each call


@private
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_left": 3}], ids=str)
@pytest.mark.parametrize(("run", "most"), [(padded, (14, 6)), (packed, (22, 6))])
def test_few_functions_run_in_python(run, most, options):
    inputs = leaves()
    out = run(*inputs, **options)
    upstream = torch.ones_like(out)
    torch.autograd.grad(out, inputs, upstream, retain_graph=True)
    in_forward = frames_of(lambda: run(*inputs, **options))
    in_backward = frames_of(lambda: torch.autograd.grad(out, inputs, upstream))
    extra = 6 if options else 0  # what looks at options
    assert in_forward["forward"] == in_backward["backward"] == 1
    assert in_forward.total() <= most[0] + extra, in_forward
    assert in_backward.total() <= most[1], in_backward


def paged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    table = torch.tensor([[0]], dtype=torch.int32)
    return pyflash.attention_paged(q, k, v, table, torch.tensor([9], dtype=torch.int32))


def cached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return pyflash.attention_cached(q, k, v, torch.tensor([9], dtype=torch.int32))


def appended(_: Tensor, k: Tensor, v: Tensor) -> None:
    pyflash.append_kv(k[0, :1], v[0, :1], k.clone(), v.clone(), torch.tensor([3]))


@private
@pytest.mark.parametrize(
    ("run", "most"), [(padded, 8), (packed, 16), (paged, 17), (cached, 22), (appended, 19)]
)
def test_few_functions_run_in_python_without_gradients(run, most):
    inputs = [x.detach() for x in leaves()]
    run(*inputs)
    frames = frames_of(lambda: run(*inputs))
    assert frames.total() - frames[run.__name__] <= most, frames


@private
@pytest.mark.parametrize("run", [padded, packed])
def test_who_computes_gradients_is_asked_once(run, on_a_gpu, asked):
    first = gradients(run)
    assert asked == {"choose": 1, "at once": 1}
    for _ in range(3):
        assert all(map(torch.equal, gradients(run), first))
    assert asked == {"choose": 1, "at once": 4}
    gradients(run, causal=True)
    assert asked == {"choose": 2, "at once": 5}


# Where another one may have to run, or somebody looks


@private
def test_kernels_that_were_loaded_since_the_forward_pass_are_asked(on_a_gpu, asked):
    inputs = leaves()
    out = padded(*inputs)
    expected = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    assert asked == {"choose": 1, "at once": 1}
    answers.forget()
    found = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    assert asked == {"choose": 2, "at once": 1, "bwd": 1}
    assert all(map(torch.equal, found, expected))
    on_a_gpu[:] = [""]
    answers.forget()
    torch.autograd.grad(out.sum(), inputs)
    assert asked["borrowed"] == 1


@private
def test_the_switch_may_change_between_the_passes(on_a_gpu, asked, monkeypatch):
    told = []

    def tells(run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *x, **given: told.append(given) or run(*x, **given)

    op = torch.ops.pyflash.run_backward
    monkeypatch.setattr(torch.ops.pyflash, "run_backward", tells(op))
    monkeypatch.setattr(private_api, "_run_backward", tells(private_api._run_backward))
    inputs = leaves()
    out = padded(*inputs)
    torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    torch.use_deterministic_algorithms(True)
    try:
        torch.autograd.grad(out.sum(), inputs, retain_graph=True)
        padded(*inputs).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert told == [{}, {"deterministic": True}, {"deterministic": True}]
    assert asked == {"choose": 3, "at once": 2, "bwd": 1}


@private
def test_the_environment_is_asked_about_kernels_of_no_measured_gpu(on_a_gpu, asked, monkeypatch):
    on_a_gpu[:] = [UNMEASURED]
    monkeypatch.setattr(choice, "_refusal_of_cudnn", lambda *_: "it does not suit")
    for n in (1, 2):
        monkeypatch.setenv(choice.SWITCH, "own")
        gradients(padded)
        monkeypatch.delenv(choice.SWITCH)
        gradients(padded)
        assert (asked["bwd"], asked["borrowed"], asked["at once"]) == (n, n, 0)


@private
def test_nothing_to_attend_is_left_to_the_op(on_a_gpu, asked):
    q, k, v = (torch.zeros(2, n, 4, 16).half().requires_grad_() for n in (9, 0, 0))
    padded(q, k, v).sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))
    assert asked == {}


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        if op.namespace == "pyflash":
            self.ops.append(op.name())
        return op(*arguments, **(options or {}))


@pytest.mark.parametrize(("run", "name"), [(padded, "bwd"), (packed, "bwd_varlen")])
def test_modes_see_the_op(run, name):
    """As those that count FLOPs, and those that record a graph."""
    inputs = leaves()
    out = run(*inputs)
    with Seen() as seen:
        found = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    assert seen.ops == [f"pyflash::{name}"]
    assert all(map(torch.equal, found, torch.autograd.grad(out.sum(), inputs)))


def test_a_recorded_graph_has_the_op():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda *x: torch.autograd.grad(padded(*x).sum(), x))(*leaves())
    targets = [node.target for node in graph.graph.nodes]
    assert torch.ops.pyflash.bwd.default in targets
    assert torch.ops.pyflash.run_backward.default not in targets


def test_a_gradient_that_is_yet_to_be_negated():
    """torch negates it where it is read, which an op past the dispatcher would not know of."""
    inputs = leaves()
    out = padded(*inputs)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, torch._neg_view(upstream), retain_graph=True)
    expected = torch.autograd.grad(out, inputs, -upstream)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("run", [padded, packed])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_run_the_forward_pass_once_more(run, use_reentrant):
    from torch.utils.checkpoint import checkpoint

    inputs, calls = leaves(), []

    def layer(*x: Tensor) -> Tensor:
        calls.append(torch.is_grad_enabled())
        return run(*x).sin()

    expected = torch.autograd.grad(run(*inputs).sin().sum(), inputs)
    checkpoint(layer, *inputs, use_reentrant=use_reentrant).sum().backward()
    assert calls == [not use_reentrant, True]
    assert all(torch.equal(x.grad, dx) for x, dx in zip(inputs, expected, strict=True))


def test_gradients_of_views_lie_as_torch_lays_them_out():
    for permutation in ((0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (2, 1, 0, 3)):
        inputs = [
            torch.randn([(2, 9, 4, 16)[i] for i in permutation])
            .half()
            .permute([permutation.index(i) for i in range(4)])
            .requires_grad_()
            for _ in range(3)
        ]
        out = padded(*inputs)
        for x, dx in zip(inputs, torch.autograd.grad(out.sum(), inputs), strict=True):
            assert dx.stride() == torch.empty_like(x).stride()


# The program


def test_host_times_are_measured(capsys):
    host_time.main(["--batches", "2", "--calls", "3", "pyflash", "nothing"])
    _, *_, head, plain, causal, of_packed, nothing = capsys.readouterr().out.splitlines()
    assert head.split() == ["us/call", "forward", "recorded", "forward", "backward"]
    for name, line in (
        ("pyflash", plain), ("pyflash causal", causal), ("pyflash packed", of_packed),
        ("a function that does nothing", nothing),
    ):  # fmt: skip
        assert line.startswith(name)
        assert all(float(x) > 0 for x in line.removeprefix(name).split())
