"""The derivative beside finite differences and torch's autograd."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import Grammar, captured, pairs
from support.torch_programs import torch_value

from pyflash.variant import parse
from pyflash.variant.derivative import ZERO, derivative, derivatives
from pyflash.variant.evaluate import node_value
from pyflash.variant.expr import SCORE, Node

torch = pytest.importorskip("torch")


def autograd(root: Node, values: dict) -> dict[str, torch.Tensor]:
    """The gradients of a sum over pairs, by s and the tensors that root reads, in float64."""
    tensors = {name: torch.as_tensor(np.asarray(value)) for name, value in values.items()}
    for name in ("s", *(n for n, value in captured().items() if value.dtype.kind == "f")):
        tensors[name] = tensors[name].double().requires_grad_()
    result = torch_value(root, tensors, torch.float64)
    leaves = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    if not result.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    count = values["q"].shape
    total = result.broadcast_to(count).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


def symbolic(root: Node, values: dict) -> dict[str, torch.Tensor]:
    """The same by derivatives, scattered to where loads read."""
    tensors = {name: torch.as_tensor(np.asarray(value)) for name, value in values.items()}
    names = ("s", *(n for n, value in captured().items() if value.dtype.kind == "f"))
    found = {name: torch.zeros(tensors[name].shape, dtype=torch.float64) for name in names}
    count = values["q"].shape
    exact = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    for by, node in derivatives(root).items():
        slope = torch_value(node, exact, torch.float64).double().broadcast_to(count)
        if by == SCORE:
            found["s"] += slope
            continue
        table = found[by.data.name]
        indices = [torch_value(arg, exact, torch.float64).broadcast_to(count) for arg in by.args]
        if indices:
            table.index_put_(tuple(i.long() for i in indices), slope, accumulate=True)
        else:
            table += slope.sum()
    return found


def assert_same(root: Node, values: dict) -> None:
    expected, found = autograd(root, values), symbolic(root, values)
    for name, gradient in expected.items():
        known = gradient.isfinite()  # torch multiplies what a selection hides by 0
        scale = max(1.0, gradient[known].abs().max().item()) if known.any() else 1.0
        close = {"rtol": 1e-5, "atol": 1e-5 * scale}
        message = f"{name}: {root}"
        torch.testing.assert_close(found[name][known], gradient[known], **close, msg=message)


def finite(values: dict) -> dict:
    scores = np.where(np.isfinite(values["s"]), values["s"], np.float32(0.5))
    return values | {"s": scores}


@given(st.integers(0, 1 << 32))
def test_beside_autograd(seed):
    """At ties and corners, too: numbers are multiples of 1/16."""
    random = Random(seed)
    root = Grammar(random).number(4)
    values = finite(pairs(random, 24))
    if "f16" in str(root):  # rounded from float64 and from float32 they may differ
        return
    with np.errstate(all="ignore"):
        value = torch_value(
            root, {n: torch.as_tensor(np.asarray(v)) for n, v in values.items()}, torch.float64
        )
    if value.isfinite().all() and value.abs().max() < 1e6:
        found = symbolic(root, values)
        if all(gradient.isfinite().all() for gradient in found.values()):
            assert_same(root, values)


FUNCTIONS = [
    "s + 1.0", "2.0 - s", "s * s", "s / (s * s + 1.0)", "abs(s)", "-s", "min(s, x * 2.0)",
    "max(s, x)", "clamp(s, -1.0, 1.0)", "clamp(s, x, 1.0)", "clamp(s, -1.0, x)", "clamp(x, s, s)",
    "clamp(s, 1.0, -1.0)", "clamp(x, 2.0, s)", "where(q < k, s * s, s)", "exp(s)", "exp2(s)",
    "log(abs(s) + 1.0)", "log2(s * s + 0.5)", "tanh(s)", "sigmoid(s)", "sqrt(s * s + 1.0)",
    "rsqrt(s * s + 1.0)", "sin(s)", "cos(s)", "floor(s)", "erf(s)", "bf16(s) * s", "s * q",
    "x / s", "s * bias[q % 6, k % 5]", "tanh(s / x) * x", "s + exp(half[k % 4] * s)",
    "where(s > 0, s, 0.0)", "max(min(s, 1.0), min(s, 1.0))", "max(s, q)", "alone * s",
]  # fmt: skip
HEAD = "a(x: f32, bias: f32[2], half: f16[1], alone: f32[0])"


def score_of(text: str) -> Node:
    names = [part.partition(":")[0] for part in HEAD[2:-1].split(", ")]
    types = dict(part.split(": ") for part in HEAD[2:-1].split(", "))
    used = [name for name in names if name in text.replace("exp", "").replace("max", "")]
    head = f"({', '.join(f'{name}: {types[name]}' for name in used)})" if used else ""
    return parse(f"a{head}: {text}").score


CORNERS = np.array([-2.0, -1.0, -0.5, 0.375, 0.5, 1.0, 0.75, 3.0], np.float32)


@pytest.mark.parametrize("text", FUNCTIONS)
def test_each_rule(text):
    values = pairs(Random(1), len(CORNERS)) | {"s": CORNERS}
    assert_same(score_of(text), values)
    if text != "x / s":
        assert_same(score_of(text), values | {"s": np.append(CORNERS[1:], np.float32(0))})


# Rounding has steps, and torch has no gradient of equal bounds.
UNLIKE = ("bf16(s) * s", "clamp(x, s, s)")


@pytest.mark.parametrize("text", [text for text in FUNCTIONS if text not in UNLIKE])
def test_beside_finite_differences(text):
    root = score_of(text)
    values = {n: torch.as_tensor(np.asarray(v)) for n, v in pairs(Random(1), 64).items()}
    values = {n: v.double() if v.is_floating_point() else v for n, v in values.items()}
    scores = torch.linspace(-3.03, 3.07, 64, dtype=torch.float64)  # at no corner
    step = 1e-6
    low, high = (
        torch_value(root, values | {"s": scores + d}, torch.float64) for d in (-step, step)
    )
    slope = torch_value(derivative(root), values | {"s": scores}, torch.float64)
    difference = (high - low) / (2 * step)
    torch.testing.assert_close(
        slope.double().broadcast_to(64), difference.broadcast_to(64), rtol=1e-5, atol=1e-5
    )


def test_a_hidden_infinity_stays_hidden():
    """0 * inf is NaN."""
    slope = derivative(parse("a: where(k < 3, exp(s), 0.0)").score)
    values = {"k": np.array([2, 3]), "s": np.array([1.0, 1e9], np.float32)}
    assert node_value(slope, values).tolist() == [pytest.approx(np.e), 0.0]


def test_what_has_no_derivative():
    variant = parse("a(t: i32[1], u: f32[1]): s + f32(t[q]) + floor(u[k])")
    assert list(derivatives(variant.score)) == [SCORE]
    assert derivative(parse("a: f32(q)").score) == ZERO


def test_too_long_a_derivative_is_refused():
    text = "s"
    for _ in range(60):
        text = f"exp({text}) * s"
    with pytest.raises(ValueError, match="expected fewer"):
        derivative(parse(f"a: {text}").score)
