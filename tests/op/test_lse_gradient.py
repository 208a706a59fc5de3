"""The gradients of lse, alone and beside those of out, against fp64."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from support.problems import MASKS, NO_MASK, PACKED, Shape, make_inputs, make_packed
from torch import Tensor

from pyflash import attention, attention_varlen
from pyflash.op.backward import cuda, kernels
from pyflash.op.reference import attention_ref, attention_varlen_ref, tolerance

SMALL = Shape("small", 2, 9, 12, 4, heads_kv=2)
SHAPES = [
    Shape("square", 1, 64, 64, 2),
    Shape("fewer_keys", 1, 71, 37, 2),  # causal: the first rows have nothing to attend
    Shape("gqa", 2, 33, 47, 6, heads_kv=2),
]
VARIANTS = {
    "plain": {},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.3, -1.0])},
    "chunk": {"attention_chunk": 16},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.1])},
}


def gradients(run, leaves, upstream, dtype):
    """upstream: the gradients of out and lse, of which one may be None."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in leaves]
    results = [(x, g) for x, g in zip(run(*leaves), upstream, strict=True) if g is not None]
    # An lse of -inf is that of a row with nothing to attend, which has no gradient.
    pairs = [(x.masked_fill(x == -math.inf, 0), g.to(x.dtype)) for x, g in results]
    outputs, gradients_of_outputs = zip(*pairs, strict=True)
    return torch.autograd.grad(outputs, leaves, gradients_of_outputs, materialize_grads=True)


def check(ours, reference, leaves, rows):
    """`rows`: the shape of lse. `reference` takes a dtype as well."""
    dtype = leaves[0].dtype
    for upstream in (
        (torch.randn(leaves[0].shape).to(dtype), torch.randn(rows)),
        (None, torch.randn(rows)),
    ):
        exact, rough = (
            gradients(lambda *x, to=to: reference(*x, dtype=to), leaves, upstream, to)
            for to in (torch.float64, dtype)
        )
        found = gradients(ours, leaves, upstream, dtype)
        for name, actual, right, half in zip("qkvs", found, exact, rough, strict=False):
            error = (actual - right).abs().max().item() if right.numel() else 0.0
            bound = tolerance(right, half) + 1e-5
            assert error <= bound, f"gradient of {name}: error {error:.3e}, bound {bound:.3e}"


def of_heads(options, heads):
    """The options with a number for each of so many heads."""
    return {n: x.repeat(heads // 2) if isinstance(x, Tensor) else x for n, x in options.items()}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mask", [NO_MASK, MASKS[0], MASKS[5]], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_of_lse(shape, mask, variant):
    options = mask.options | of_heads(VARIANTS[variant], shape.heads)
    inputs = make_inputs(shape, torch.float16, 32)
    check(
        lambda *x: attention(*x, return_lse=True, **options),
        lambda *x, dtype: attention_ref(*x, dtype=dtype, **options),
        inputs,
        (shape.batch, shape.heads, inputs[0].shape[1]),
    )


@pytest.mark.parametrize("mask", [NO_MASK, MASKS[0]], ids=str)
@pytest.mark.parametrize("packed", PACKED, ids=str)
def test_gradients_of_lse_of_packed_sequences(packed, mask):
    q, k, v, *lengths = make_packed(packed, torch.bfloat16, 16)
    check(
        lambda *x: attention_varlen(*x, *lengths, return_lse=True, **mask.options),
        lambda *x, dtype: attention_varlen_ref(*x, *lengths[:2], dtype=dtype, **mask.options),
        (q, k, v),
        (q.shape[1], q.shape[0]),
    )


@pytest.mark.parametrize("mask", [NO_MASK, MASKS[0]], ids=str)
def test_gradients_of_sinks_by_lse(mask):
    """A row with nothing but its sink gives the sink all of its gradient, and q none."""
    inputs = make_inputs(SHAPES[1], torch.float16, 32)
    sinks = torch.tensor([0.3, -1.0])
    check(
        lambda q, k, v, s: attention(q, k, v, sinks=s.float(), return_lse=True, **mask.options),
        lambda q, k, v, s, dtype: attention_ref(q, k, v, sinks=s, dtype=dtype, **mask.options),
        [*inputs, sinks],
        (1, 2, inputs[0].shape[1]),
    )


def test_an_infinite_gradient_of_a_row_with_nothing_to_attend():
    """What comes of lse = -inf may be infinite, and reaches nobody."""
    leaves = [x.requires_grad_() for x in make_inputs(SHAPES[1], torch.float16, 16)]
    out, lse = attention(*leaves, causal=True, return_lse=True)
    grad_lse = torch.where(lse == -math.inf, math.nan, 1.0)
    for x in torch.autograd.grad((out, lse), leaves, (torch.ones_like(out), grad_lse)):
        assert x.isfinite().all()


def test_outputs_that_are_not_differentiated():
    leaves = [x.requires_grad_() for x in make_inputs(SMALL, torch.float16, 16)]
    out, lse = attention(*leaves, return_lse=True)
    assert lse.requires_grad
    (alone,) = torch.autograd.grad(out.sum(), leaves[:1], retain_graph=True)
    (both,) = torch.autograd.grad((out.sum(), lse.sum() * 0), leaves[:1])
    assert torch.equal(alone, both)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_of_lse_of_a_compiled_call(backend):
    """A graph that gives lse away has a gradient for it, of zeros where nobody asks."""

    def run(q, k, v):
        return attention(q, k, v, causal=True, return_lse=True)

    compiled = torch.compile(run, backend=backend, fullgraph=True)
    inputs = make_inputs(SMALL, torch.float16, 16)
    for weight in (0.0, 1.0):
        found = []
        for function in (run, compiled):
            leaves = [x.detach().requires_grad_() for x in inputs]
            out, lse = function(*leaves)
            found.append(torch.autograd.grad(out.sum() + weight * lse.sum(), leaves))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


def test_borrowed_kernels_refuse_a_gradient_of_lse(monkeypatch):
    """In words, where the choice changes after the forward pass; then lse has none from the
    start."""
    monkeypatch.setattr(kernels, "choice", lambda *_: ("", "something is in the way"))
    q, k, v = make_inputs(SMALL, torch.float16, 16)
    out, lse = attention(q, k, v, return_lse=True)
    says = r"^pyflash: lse has no gradient here, .*something is in the way\): expected lse.detach"
    inputs = (torch.ones_like(out), out, lse)
    with pytest.raises(RuntimeError, match=says):
        cuda.bwd(*inputs, q, k, v, grad_lse=torch.ones_like(lse))
    packed = [x.flatten(0, 1) for x in (out, out, q, k, v)]
    starts = [torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (9, 12)]
    lse = lse.transpose(0, 1).flatten(1)
    with pytest.raises(RuntimeError, match=says):
        cuda.bwd_varlen(*packed[:2], lse, *packed[2:], *starts, 9, 12, grad_lse=lse)


@pytest.mark.parametrize("config", ["", "(FP16, 64, 128, 128, 2): sm90_bwd+stages_2"])
def test_lse_has_a_gradient_on_a_gpu_where_own_kernels_run(monkeypatch, config):
    """Also while a graph is traced, whose lengths are unknown."""
    asked = []
    monkeypatch.setattr(
        kernels, "choice", lambda _, problem: asked.append(problem) or (config, "why")
    )
    from torch._subclasses import FakeTensorMode

    from pyflash.op.backward import lse_has_gradient

    with FakeTensorMode():
        q = torch.empty(2, 9, 4, 16, dtype=torch.float16, device="cuda")
        starts = torch.zeros(3, dtype=torch.int32, device="cuda")
        assert lse_has_gradient(q, q, (), {}) == bool(config)
        q, packing = q.flatten(0, 1), (starts, starts, 9, 9)
        options = {"causal": True, "num_splits": 0}
        assert lse_has_gradient(q, q, packing, options) == bool(config)
    padded, packed = asked
    assert (padded["packed"], padded["batch"], padded["seqlen_q"]) == (False, 2, 9)
    assert (packed["packed"], packed["batch"], packed["total_k"]) == (True, 2, 18)
    assert "num_splits" not in packed


@pytest.mark.parametrize("slopes", [None, (4,), (2, 4)], ids=str)
def test_own_kernels_are_asked_while_every_extent_is_unknown(monkeypatch, slopes):
    """By the op that selects them, which refuses a d_head that is no multiple of 8, and slopes of
    other heads."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    from pyflash.op.backward import lse_has_gradient

    h100 = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: h100)

    def of_unknown_extents(real: Tensor) -> Tensor:
        dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * real.dim())
        x = mode.from_tensor(real, symbolic_context=dynamic)
        assert not any(isinstance(n, int) for n in x.shape)
        return torch.empty(x.shape, dtype=x.dtype, device="cuda")

    real_q = torch.empty(2, 9, 4, 16, dtype=torch.float16)
    real_slopes = torch.empty(slopes or ())
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        q = of_unknown_extents(real_q)
        options = {"causal": True}
        if slopes:
            options["alibi_slopes"] = of_unknown_extents(real_slopes)
        problem = kernels.problem_of(q, q, (), options)
        config, reason = kernels.choice(q.device, problem)
        assert lse_has_gradient(q, q, (), options) == bool(config), reason
    assert problem["d_head"] == 16
    numbers = {name: x for name, x in problem.items() if name not in options}
    assert all(isinstance(x, int) for x in numbers.values())


@pytest.mark.parametrize(
    "unknown",
    [
        names
        for n in range(6)
        for names in itertools.combinations(
            ("batch", "seqlen_q", "seqlen_k", "total_q", "total_k"), n
        )
    ],
    ids="-".join,
)
def test_a_graph_of_packed_sequences_asks_for_kernels_whatever_it_does_not_know(
    unknown, monkeypatch
):
    """The problem is one that no single extent gives away: 300 rows of 3 sequences."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    h100 = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: h100)
    shape_env = ShapeEnv()
    extents = {"batch": 3, "seqlen_q": 200, "seqlen_k": 110, "total_q": 300, "total_k": 302}
    with FakeTensorMode(shape_env=shape_env):
        for name in unknown:
            extents[name] = shape_env.create_unbacked_symint()
        q, k = (
            torch.empty(extents[rows], 4, 64, dtype=torch.float16, device="cuda")
            for rows in ("total_q", "total_k")
        )
        starts = torch.empty(extents["batch"] + 1, dtype=torch.int32, device="cuda")
        packing = (starts, starts, extents["seqlen_q"], extents["seqlen_k"])
        problem = kernels.problem_of(q, k, packing, {"causal": True})
        kernels.choice(q.device, problem)
    for side in "qk":
        assert problem[f"total_{side}"] <= problem["batch"] * problem[f"seqlen_{side}"]
    for name, x in extents.items():
        assert name in unknown or problem[name] == x
