"""Gradients of attention with a variant by kernels on a GPU: every named one, in both backward
families, against fp64; and what composes with a variant."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.captured import GROUPS, values
from support.gpu_kernels import forbid_borrowed
from support.variant_gradients import Extents
from support.variants import values_of

import pyflash
from pyflash.codegen.build import build_with_variants, nearest_archs
from pyflash.config import DType, parse
from pyflash.op import library
from pyflash.op.variants import call as variant_call
from pyflash.op.variants import jit
from pyflash.op.variants.arguments import captured_of
from pyflash.op.variants.jit import default_config, default_gradient_config
from pyflash.op.variants.reference import attention_variant_ref
from pyflash.variant.library import named, names
from pyflash.variant.tiles import Problem

pytestmark = pytest.mark.gpu

SM80 = "(FP16, 64, 128, 128, 8): sm80_bwd+stages_1"
# Equal lengths, more keys than queries, fewer, one query.
PROBLEMS = {
    "square": Problem(300, 300, 2, 4),
    "more keys": Problem(130, 517, 1, 4),
    "fewer keys": Problem(390, 140, 2, 2),
    "one query": Problem(1, 700, 3, 4),
}
# The largest errors, as shares of the norm of a gradient. Sums over many pairs, of either sign, are
# small beside what rounding of out adds by delta.
LIMIT, LIMIT_OF_SUMS = 2e-3, 3e-2
CURVED_PARTS = GROUPS["curved"]


@pytest.fixture(scope="module")
def configs() -> dict[str, str]:
    """By family, a config of op backward that is built with every named variant; and a forward
    one."""
    major, minor = torch.cuda.get_device_capability()
    archs = nearest_archs([10 * major + minor])
    variants = [named(name).variant for name in names()]
    library.load(build_with_variants(variants, [default_config(DType.FP16, 64, archs[0])], archs))
    own = default_gradient_config(DType.FP16, 64, archs[0])
    chosen = {str(config.family): config for config in (own, parse(SM80))}
    library.load(build_with_variants(variants, chosen.values(), archs))
    return {family: config.canonical().short_form() for family, config in chosen.items()}


def inputs_of(at: Problem, seed: int, d_head: int = 64) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    heads_kv = at.heads // 2
    sizes = ((at.q_len, at.heads), (at.k_len, heads_kv), (at.k_len, heads_kv))
    return [
        torch.randn(at.batch, *size, d_head, device="cuda").half().requires_grad_()
        for size in sizes
    ]


def on_gpu(values: dict) -> dict:
    return {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in values.items()}


def check(inputs, tensors, variant, packing=(), **options) -> None:
    """The gradients of a call beside fp64."""
    function = pyflash.attention_varlen if packing else pyflash.attention
    out = function(*inputs, *packing, variant=variant, tensors=tensors, **options)
    grad_out = torch.randn(out.shape, device="cuda").half()
    found = torch.autograd.grad(out, inputs, grad_out)
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    others = ("compile", "deterministic", "backward")
    options = {n: x for n, x in options.items() if n not in others}
    captured = captured_of(variant, tensors)
    expected, _ = attention_variant_ref(
        *leaves, captured, *packing[:2], dtype=torch.float64, **options
    )
    exact = torch.autograd.grad(expected, leaves, grad_out.double())
    for name, one, other in zip("qkv", found, exact, strict=True):
        error = ((one.double() - other).norm() / other.norm().clamp(min=1e-6)).item()
        assert error < LIMIT, f"d{name}: {error}"


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("family", ["sm80_backward", "sm90_backward"])
@pytest.mark.parametrize("name", names())
def test_gradients_are_those_of_the_formula(configs, monkeypatch, name, family, problem):
    if family not in configs:
        pytest.skip(f"no default config is of {family} here")
    at = PROBLEMS[problem]
    if name == "tree":  # whose ancestors are the bits of a number
        at = replace(at, q_len=min(at.q_len, 60), k_len=min(at.k_len, 62))
    monkeypatch.setattr(variant_call, "config_for", lambda *_: configs[family])
    forbid_borrowed(monkeypatch)
    check(inputs_of(at, len(name)), on_gpu(values_of(name, at)), name)


OPTIONS = {
    "causal": {"causal": True},
    "window": {"window_left": 70, "window_right": 9},
    "softcap": {"softcap": 1.5},
    "chunks": {"attention_chunk": 48},
    "scale": {"softmax_scale": 0.3},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "deterministic": {"deterministic": True, "causal": True},
}
CURVED = "curved(gain: f32[1]): gain[h] * tanh(s / gain[h]) + 0.01 * (k - q) where (k + q) % 3 != 0"


@pytest.mark.parametrize("options", OPTIONS)
def test_a_variant_composes_with_options_and_compiles_on_demand(options):
    at = PROBLEMS["square"]
    tensors = {"gain": torch.linspace(1, 4, at.heads, device="cuda")}
    check(inputs_of(at, 1), tensors, CURVED, compile=True, **on_gpu(OPTIONS[options]))


@pytest.mark.parametrize("options", [name for name in OPTIONS if name != "deterministic"])
def test_the_formula_computes_them_on_request(options):
    """In the thread of autograd that runs the backward pass of a GPU."""
    at = PROBLEMS["square"]
    tensors = {"gain": torch.linspace(1, 4, at.heads, device="cuda")}
    asked = {"compile": True, "backward": "reference", **on_gpu(OPTIONS[options])}
    check(inputs_of(at, 1), tensors, CURVED, **asked)


def test_the_formula_computes_them_in_a_graph():
    at = PROBLEMS["square"]
    inputs, tensors = inputs_of(at, 1), {"gain": torch.linspace(1, 4, at.heads, device="cuda")}

    def gradients(function) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(function(*inputs).float().square().sum(), inputs)

    def call(q, k, v):
        return pyflash.attention(
            q, k, v, variant=CURVED, tensors=tensors, backward="reference", compile=True
        )

    found, expected = gradients(torch.compile(call, fullgraph=True)), gradients(call)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("backward", ["", "reference"])
def test_packed_sequences_are_their_own(backward):
    lengths_q, lengths_k = (100, 0, 31, 165), (129, 7, 0, 265)
    starts = [
        torch.tensor([0, *n]).cumsum(0, dtype=torch.int32).cuda() for n in (lengths_q, lengths_k)
    ]
    totals = ((sum(lengths_q), 4), (sum(lengths_k), 2), (sum(lengths_k), 2))
    torch.manual_seed(2)
    inputs = [torch.randn(*n, 64, device="cuda").half().requires_grad_() for n in totals]
    tensors = {"gain": torch.linspace(1, 4, 4, device="cuda")}
    packing = (*starts, max(lengths_q), max(lengths_k))
    check(inputs, tensors, CURVED, packing, compile=True, backward=backward)


def test_deterministic_gradients_have_the_same_bits():
    at = Problem(1000, 1000, 2, 8)
    inputs, tensors = inputs_of(at, 3), {"gain": torch.linspace(1, 4, 8, device="cuda")}
    grad_out = torch.randn(2, 1000, 8, 64, device="cuda").half()

    def gradients() -> tuple[torch.Tensor, ...]:
        out = pyflash.attention(
            *inputs, variant=CURVED, tensors=tensors, deterministic=True, compile=True
        )
        return torch.autograd.grad(out, inputs, grad_out)

    first = gradients()
    for _ in range(20):
        for one, other in zip(first, gradients(), strict=True):
            assert torch.equal(one, other)


def test_sinks_have_gradients_too():
    at = PROBLEMS["square"]
    inputs, sinks = inputs_of(at, 4), torch.randn(4, device="cuda", requires_grad=True)
    tensors = {"gain": torch.linspace(1, 4, at.heads, device="cuda")}

    def gradient(backward: str) -> torch.Tensor:
        out = pyflash.attention(
            *inputs, variant=CURVED, tensors=tensors, sinks=sinks, backward=backward, compile=True
        )
        (found,) = torch.autograd.grad(out.float().square().sum(), sinks)
        return found

    torch.testing.assert_close(gradient(""), gradient("reference"), rtol=2e-2, atol=2e-2)


def captured_on_gpu(group, name, at):
    """What a part of a group captures, its floats with gradients."""
    given = on_gpu(values(name, Extents(at.batch, at.heads, at.heads // 2, at.q_len, at.k_len)))
    for x in given.values():
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            x.requires_grad_()
    return given


def check_captured(inputs, given, variant, packing=(), call=None, **options):
    """The gradients of the inputs and of all floats that are captured, beside fp64."""
    floats = [x for x in given.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    function = pyflash.attention_varlen if packing else pyflash.attention
    call = call or (lambda *tensors: function(*tensors, variant=variant, tensors=given, **options))
    out = call(*inputs, *packing)
    grad_out = torch.randn(out.shape, device="cuda").half()
    found = torch.autograd.grad(out, [*inputs, *floats], grad_out)
    captured = captured_of(variant, given)
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    exact_of = [
        x.detach().double().requires_grad_() if x.is_floating_point() else x
        for x in captured.tensors
    ]
    options.pop("compile", None)
    expected, _ = attention_variant_ref(
        *leaves, captured._replace(tensors=exact_of), *packing[:2], dtype=torch.float64, **options
    )
    order = {id(x): y for x, y in zip(captured.tensors, exact_of, strict=True)}
    exact = torch.autograd.grad(expected, [*leaves, *(order[id(x)] for x in floats)],
                                grad_out.double())  # fmt: skip
    for place, (one, other) in enumerate(zip(found, exact, strict=True)):
        limit = LIMIT if place < 3 else LIMIT_OF_SUMS
        error = ((one.double() - other).norm() / other.norm().clamp(min=1e-6)).item()
        assert error < limit, f"gradient {place}: {error}"


CAPTURED = [(group, name) for group, of in GROUPS.items() for name in of]


@pytest.mark.parametrize("family", ["sm80_backward", "sm90_backward"])
@pytest.mark.parametrize(("group", "name"), CAPTURED)
def test_what_is_captured_has_gradients(monkeypatch, group, name, family):
    major, minor = torch.cuda.get_device_capability()
    config = default_gradient_config(DType.FP16, 64, nearest_archs([10 * major + minor])[0])
    if family == "sm80_backward":
        config = parse(SM80)
    elif str(config.family) != family:
        pytest.skip(f"no default config is of {family} here")
    monkeypatch.setattr(jit, "default_gradient_config", lambda *_: config)
    forbid_borrowed(monkeypatch)
    at = Problem(300, 300, 2, 4)
    given = captured_on_gpu(group, name, at)
    check_captured(inputs_of(at, 7), given, GROUPS[group][name], compile=True)


@pytest.mark.parametrize("d_head", [96, 128, 192, 256])
@pytest.mark.parametrize(("group", "name"), [("added", "alibi"), ("curved", "mixed")])
def test_what_is_captured_has_gradients_at_every_d_head(group, name, d_head):
    """Above 128 both warpgroups of a tile have the same keys, and the same scores."""
    at = Problem(300, 300, 2, 4)
    given = captured_on_gpu(group, name, at)
    check_captured(inputs_of(at, d_head, d_head), given, GROUPS[group][name], compile=True)


@pytest.mark.parametrize("options", ["causal", "window", "softcap"])
@pytest.mark.parametrize("name", ["gain", "mixed"])
def test_what_is_captured_composes_with_options(name, options):
    at = Problem(300, 300, 2, 4)
    given = captured_on_gpu("curved", name, at)
    check_captured(inputs_of(at, 8), given, CURVED_PARTS[name], compile=True, **OPTIONS[options])


def test_what_is_captured_of_packed_sequences():
    lengths = (100, 0, 31, 165)
    starts = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32).cuda()
    torch.manual_seed(2)
    inputs = [
        torch.randn(sum(lengths), n, 64, device="cuda").half().requires_grad_() for n in (4, 2, 2)
    ]
    given = captured_on_gpu("added", "alibi", Problem(300, 300, 4, 4))
    check_captured(
        inputs, given, GROUPS["added"]["alibi"], (starts, starts, 165, 165), compile=True
    )


def test_what_is_captured_in_a_graph():
    at = Problem(300, 300, 2, 4)
    inputs, slope = inputs_of(at, 9), torch.rand(4, device="cuda", requires_grad=True)

    def loss(q, k, v, slope):
        return (
            pyflash.attention(
                q, k, v, variant=GROUPS["added"]["alibi"], tensors={"slope": slope}, compile=True
            )
            .float()
            .square()
            .sum()
        )

    (expected,) = torch.autograd.grad(loss(*inputs, slope), slope)
    (found,) = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*inputs, slope), slope)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_what_is_captured_is_not_deterministic():
    inputs = inputs_of(PROBLEMS["square"], 5)
    call = {"variant": CURVED, "compile": True, "deterministic": True}
    gain = torch.linspace(1, 4, 4, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="deterministic came with gradients of what a variant"):
        pyflash.attention(*inputs, tensors={"gain": gain}, **call)


def test_a_graph_has_the_kernels_of_gradients():
    inputs = inputs_of(PROBLEMS["square"], 6)
    tensors = {"gain": torch.linspace(1, 4, 4, device="cuda")}

    def loss(q, k, v):
        return pyflash.attention(q, k, v, variant=CURVED, tensors=tensors).float().square().sum()

    pyflash.attention(*inputs, variant=CURVED, tensors=tensors, compile=True)  # builds both
    expected = torch.autograd.grad(loss(*inputs), inputs)
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*inputs), inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
