"""FlexAttention's functions as variants: the same numbers, what is captured, what is refused."""

from __future__ import annotations

import functools
import gc
import math
import re
import subprocess
import sys
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import FLEX_INDICES, captured, is_exact, pairs, program
from support.torch_programs import flex_functions

from pyflash.variant import trace
from pyflash.variant.evaluate import evaluate
from pyflash.variant.expr import params_of
from pyflash.variant.value import Variant

torch = pytest.importorskip("torch")
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # noqa: E402
from torch.nn.attention import flex_attention  # noqa: E402

from pyflash.variant import tracing  # noqa: E402
from pyflash.variant.tracing import TraceError  # noqa: E402

_BF16 = ("brain",)
# A function of another module, whose globals are its own.
minimum = types.FunctionType((lambda a, b: torch.minimum(a, b)).__code__, {"torch": torch})


def tensors(names) -> dict:
    found = {name: torch.as_tensor(np.asarray(value)) for name, value in captured().items()}
    found |= {name: found[name].bfloat16() for name in _BF16}
    return {name: found[name] for name in names}


def arrays(values: dict) -> dict:
    """Tensors as evaluate takes them."""
    return {
        name: value.float().numpy() if getattr(value, "dtype", None) is torch.bfloat16
        else value.numpy() if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }  # fmt: skip


def flex_program(seed: int) -> Variant:
    """Python's numbers beyond 32 bits are none of int32 tensors."""
    random = Random(seed)
    while True:
        variant = program(random, lengths=False, levels=3)
        if "wide" not in {param.name for param in variant.params}:
            return variant


@given(st.integers(0, 1 << 32))
def test_it_computes_what_torch_does(seed):
    """The same function, traced, and called with tensors."""
    variant = flex_program(seed)
    values = pairs(Random(seed), 32)
    functions = flex_functions(variant, tensors([p.name for p in variant.params]))
    indices = [torch.as_tensor(values[name]) for name in FLEX_INDICES]
    with TransformGetItemToIndex():  # as FlexAttention calls them
        score = torch.vmap(functions[0])(torch.as_tensor(values["s"]), *indices).float()
        mask = torch.vmap(functions[1])(*indices)
    bound = trace(*functions)
    here = values | arrays(bound.values)
    found, shown = np.broadcast_arrays(*evaluate(bound.variant, here), values["s"])[:2]
    expected, seen = score.numpy(), mask.numpy()
    np.testing.assert_array_equal(shown, seen)
    close = 0 if is_exact(variant) else 1e-5
    magnitude = np.abs(expected[seen & np.isfinite(expected)]).max(initial=1)
    np.testing.assert_allclose(found[seen], expected[seen], rtol=close, atol=close * magnitude)


@given(st.integers(0, 1 << 32))
def test_it_has_the_same_normal_form(seed):
    """But for booleans, which are constants, and types that only torch's texts name."""
    variant = flex_program(seed)
    if "flag" in {param.name for param in variant.params}:
        return
    bound = trace(*flex_functions(variant, tensors([p.name for p in variant.params])))
    assert {p.name for p in bound.variant.normal.params} <= {f"p{i}" for i in range(12)}
    named = {param.name: param for param in params_of(variant.score, variant.mask)}
    for param in bound.variant.params:
        computed = param.name.startswith("tensor")  # by torch, of captured ones alone
        assert computed or named[param.name] == param


SLOPES = torch.tensor([0.5, 0.25])
DOCUMENTS = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2], dtype=torch.int32)
TABLE = torch.arange(8 * 8).reshape(8, 8).float()
HALF = torch.tensor([0.5, 1.5], dtype=torch.bfloat16)
ALONE = torch.tensor(0.5)
WINDOW = 3
SCALE = 0.25


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q - k < WINDOW) & causal(b, h, q, k)


def with_default(b, h, q, k, n=5):
    return k < n


def chain(b, h, q, k):
    return TABLE[q][k] > 3


class Mod:
    def __init__(self) -> None:
        self.n = 4

    def __call__(self, b, h, q, k):
        return k < self.n

    def method(self, b, h, q, k):
        return k >= self.n


MASKS = [
    (causal, "q >= k", {}),
    (window, "(q - k < WINDOW) & (q >= k)", {"WINDOW": 3}),
    (with_default, "k < n", {"n": 5}),
    (chain, "TABLE[q, k] > 3", {"TABLE": TABLE}),
    (lambda b, h, q, k: DOCUMENTS[q] == DOCUMENTS[k], "DOCUMENTS[q] == DOCUMENTS[k]",
     {"DOCUMENTS": DOCUMENTS}),
    (functools.partial(lambda n, b, h, q, k: k < n, 4), "k < captured", {"captured": 4}),
    (Mod(), "k < 4", {}),
    (Mod().method, "k >= 4", {}),
    (flex_attention.and_masks(causal, with_default), "True & (q >= k) & (k < n)", {"n": 5}),
    (flex_attention.or_masks(causal, window), "False | (q >= k) | (q - k < WINDOW) & (q >= k)",
     {"WINDOW": 3}),
    (flex_attention.noop_mask, "True", {}),
    (lambda b, h, q, k: torch.ones((), dtype=torch.bool), "True", {}),
    (lambda b, h, q, k: (k - q).abs().to(torch.float32) <= SCALE * WINDOW,
     "f32(abs(k - q)) <= SCALE", {"SCALE": 0.75}),
    (lambda b, h, q, k: torch.logical_and(k, ~(q == k)), "bool(k) & ~(q == k)", {}),
    (lambda b, h, q, k: (k < 3).where(q < 5, h == 1), "where(q < 5, k < 3, h == 1)", {}),
    (lambda b, h, q, k: q.clamp(min=2) >= k.float(), "clamp(q, 2, 2147483647) >= f32(k)", {}),
]  # fmt: skip
SCORES = [
    (lambda s, b, h, q, k: s + SLOPES[h] * (k - q), "s + SLOPES[h] * (k - q)", {"SLOPES": SLOPES}),
    (lambda s, b, h, q, k: 2 * s, "2 * s", {}),
    (lambda s, b, h, q, k: torch.tanh(s / SCALE) * SCALE, "tanh(s / SCALE) * SCALE",
     {"SCALE": 0.25}),
    (lambda s, b, h, q, k: s * ALONE, "s * ALONE", {"ALONE": ALONE}),
    (lambda s, b, h, q, k: ALONE * s, "ALONE * s", {"ALONE": ALONE}),
    (lambda s, b, h, q, k: s + HALF[b].float(), "s + HALF[b]", {"HALF": HALF}),
    (lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")), "where(q >= k, s, -inf)", {}),
    (lambda s, b, h, q, k: s.where(q >= k, -math.inf), "where(q >= k, s, -inf)", {}),
    (lambda s, b, h, q, k: ALONE.where(q >= k, s), "where(q >= k, ALONE, s)", {"ALONE": ALONE}),
    (lambda s, b, h, q, k: torch.where(q >= k, s, torch.full_like(s, -math.inf)),
     "where(q >= k, s, -inf)", {}),
    (lambda s, b, h, q, k: s**2 + 2**s + s**0.5, "s * s + exp2(s) + sqrt(s)", {}),
    (lambda s, b, h, q, k: s.to(torch.bfloat16).sigmoid().relu(),
     "where(sigmoid(bf16(s)) <= 0, 0, sigmoid(bf16(s)))", {}),
    (lambda s, b, h, q, k: torch.div(q, 2, rounding_mode="floor") + s, "q // 2 + s", {}),
    (lambda s, b, h, q, k: s + torch.ceil(s) - torch.sub(s, k, alpha=3),
     "s + -floor(-s) - (s - k * 3)", {}),
    (lambda s, b, h, q, k: s + torch.zeros_like(k, dtype=torch.float32), "s + 0.0", {}),
    (lambda s, b, h, q, k: k, "f32(k)", {}),
    (lambda s, b, h, q, k: 1, "1.0", {}),
    (lambda s, b, h, q, k: SCALE, "SCALE", {"SCALE": 0.25}),
    (lambda s, b, h, q, k: s + TABLE[DOCUMENTS[q], -1], "s + TABLE[DOCUMENTS[q], -1]",
     {"TABLE": TABLE, "DOCUMENTS": DOCUMENTS}),
]  # fmt: skip


def assert_values(found: dict, expected: dict) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] is value or found[name] == value


@pytest.mark.parametrize(("function", "text", "values"), MASKS, ids=range(len(MASKS)))
def test_masks(function, text, values):
    bound = trace(None, function)
    assert str(bound.variant.mask) == text
    assert_values(bound.values, values)
    # As torch's own vmap has it; top-left aligned.
    plain = functools.wraps(causal)(lambda b, h, q, k: function(b, h, q, k))
    expected = flex_attention.create_mask(plain, 2, 2, 8, 8, device="cpu").numpy()
    b, h, q, k = np.mgrid[0:2, 0:2, 0:8, 0:8]
    here = {"b": b, "h": h, "q": q, "k": k, "s": np.float32(0), **arrays(bound.values)}
    np.testing.assert_array_equal(
        np.broadcast_to(evaluate(bound.variant, here)[1], b.shape), expected
    )


@pytest.mark.parametrize(("function", "text", "values"), SCORES, ids=range(len(SCORES)))
def test_scores(function, text, values):
    bound = trace(function)
    assert str(bound.variant.score) == text
    assert_values(bound.values, values)


def test_captured_names_are_names_of_parameters():
    def closure(k_len, lambda_, é):
        def mask_mod(b, h, q, k):
            return (k < k_len) & (q < lambda_) & (h < é)

        return mask_mod

    bound = trace(None, closure(3, 4, 5))
    assert bound.values == {"k_len_": 3, "lambda_": 4, "captured": 5}
    assert str(bound.variant.mask) == "(k < k_len_) & (q < lambda_) & (h < captured)"


def test_a_number_is_not_another_ones_of_another_type():
    def part(n):
        return lambda s, b, h, q, k: s * n

    one, other = part(3), part(3.0)
    bound = trace(lambda s, b, h, q, k: one(s, b, h, q, k) + other(s, b, h, q, k))
    assert [str(param) for param in bound.variant.params] == ["n: i32", "n_2: f32"]


def test_equal_names_of_other_values_are_numbered():
    def part(n):
        return lambda b, h, q, k: k < n

    bound = trace(None, flex_attention.or_masks(part(3), part(4), part(3)))
    assert bound.values == {"n": 3, "n_2": 4}


def test_another_value_is_the_same_variant():
    def mask(n):
        def mask_mod(b, h, q, k):
            return q - k < n

        return mask_mod

    one, other = trace(None, mask(3)), trace(None, mask(5))
    assert one.variant == other.variant
    assert (one.values, other.values) == ({"n": 3}, {"n": 5})
    assert trace(None, mask(1 << 40)).variant != one.variant  # an i64


def test_what_python_computes_of_a_number_is_a_number():
    n = 6

    def mask_mod(b, h, q, k):
        count = n // 2 + 1 if n > 3 else 0
        return k < count

    assert trace(None, mask_mod).values == {"n": 4}


class TestCache:
    def count(self, monkeypatch):
        calls = []
        made = tracing.Tracer.__init__
        monkeypatch.setattr(tracing.Tracer, "__init__", lambda s: (calls.append(1), made(s))[1])
        return calls

    def test_a_known_function_is_not_traced_again(self, monkeypatch):
        calls = self.count(monkeypatch)
        assert trace(None, causal, "one") is trace(None, causal, "one")
        assert trace(None, causal, "two").variant.name == "two"
        assert len(calls) == 2

    @pytest.mark.parametrize("kind", ["number", "tensor", "helper", "global"])
    def test_another_captured_value_is_seen(self, monkeypatch, kind):
        calls = self.count(monkeypatch)
        cell = {"number": 3, "tensor": SLOPES, "helper": causal, "global": 0}[kind]

        def mask_mod(b, h, q, k):
            if kind == "helper":
                return cell(b, h, q, k)
            if kind == "tensor":
                return cell[h] < k
            return k < (cell if kind == "number" else WINDOW)

        first = trace(None, mask_mod)
        assert trace(None, mask_mod) is first
        cell = {"number": 4, "tensor": SLOPES.clone(), "helper": with_default, "global": 0}[kind]
        if kind == "global":
            monkeypatch.setitem(globals(), "WINDOW", 7)
        second = trace(None, mask_mod)
        assert len(calls) == 2
        if kind == "helper":
            assert first.variant != second.variant
        else:
            (before,), (after,) = first.values.values(), second.values.values()
            assert before is not after

    @pytest.mark.parametrize("kind", ["object", "computed", "method", "module", "foreign"])
    def test_what_may_change_unseen_is_traced_again(self, monkeypatch, kind):
        calls = self.count(monkeypatch)
        mod = Mod()
        functions = {
            "object": lambda b, h, q, k: k < mod.n,
            "computed": lambda b, h, q, k: k < SLOPES.sum(),
            "method": mod.method,
            "module": lambda b, h, q, k: k < sys.maxunicode,
            "foreign": lambda b, h, q, k: minimum(q, k) < 3,
        }
        trace(None, functions[kind])
        mod.n = 9
        second = trace(None, functions[kind])
        assert len(calls) == 2
        if kind in ("object", "method"):
            assert "9" in str(second.variant)

    def test_a_function_is_let_go(self):
        def mask_mod(b, h, q, k):
            return DOCUMENTS[q] == DOCUMENTS[k]

        trace(None, mask_mod)
        reference = weakref.ref(mask_mod)
        del mask_mod
        gc.collect()
        assert reference() is None

    def test_a_score_mod_is_no_mask_mod(self):
        def either(*indices):
            return indices[-1] + 0 * indices[0]

        trace(either)
        with pytest.raises(TraceError, match="mask_mod returns i32"):
            trace(None, either)


def writes(s, b, h, q, k):
    SLOPES[h] = s
    return s


def branches(s, b, h, q, k):
    if q > k:
        return s
    return 2 * s


def nothing(s, b, h, q, k):
    s + 1


def sink(s, b, h, q, k):
    top = torch.max(s, dim=-1, keepdim=True)
    return s - top.values


REFUSED = [
    (branches, "expected where", "if q > k:"),
    (writes, "write: expected a new value", "SLOPES[h] = s"),
    (nothing, "returns nothing", ""),
    (sink, "option sinks", "top = torch.max"),
    (lambda s, b, h, q, k: s.logsumexp(-1), "option sinks", "s.logsumexp"),
    (lambda s, b, h, q, k: s.add_(1), "add_ is a write", "s.add_"),
    (lambda s, b, h, q, k: s * torch.rand(()), "rand is random", "torch.rand"),
    (lambda s, b, h, q, k: torch.nn.functional.dropout(s, 0.5), "dropout", "dropout"),
    (lambda s, b, h, q, k: s.item(), "item reads the value", "s.item()"),
    (lambda s, b, h, q, k: s * SLOPES[0].item(), "item reads the value", "item()"),
    (lambda s, b, h, q, k: s * float(ALONE), "reads the value", "float(ALONE)"),
    (lambda s, b, h, q, k: s if ALONE > 0 else 0, "reads the value", "if ALONE"),
    (lambda s, b, h, q, k: s * math.exp(q), "not of math", "math.exp"),
    (lambda s, b, h, q, k: sum(s for _ in range(q)), "no loop", "range(q)"),
    (lambda s, b, h, q, k: next(iter(s)), "no sequence", "iter(s)"),
    (lambda s, b, h, q, k: s + SLOPES, "1 axes: expected one of its numbers", "s + SLOPES"),
    (lambda s, b, h, q, k: SLOPES * s, "1 axes: expected one of its numbers", "SLOPES * s"),
    (lambda s, b, h, q, k: s + TABLE[q], "lacks 1 of its indices", "TABLE[q]"),
    (lambda s, b, h, q, k: s + TABLE[q, :], "slice", "TABLE[q, :]"),
    (lambda s, b, h, q, k: s + TABLE[q, k, h], "expected 2 indices", "TABLE[q, k, h]"),
    (lambda s, b, h, q, k: s + TABLE[s, k], "expected an integer", "TABLE[s, k]"),
    (lambda s, b, h, q, k: q[k] + s, "no elements", "q[k]"),
    (lambda s, b, h, q, k: s.double(), "float64 is no type", "s.double"),
    (lambda s, b, h, q, k: s + SLOPES.double()[h], "float64 is no type", "SLOPES.double()"),
    (lambda s, b, h, q, k: torch.nn.functional.gelu(s), "gelu has no form", "gelu"),
    (lambda s, b, h, q, k: s.detach(), "no 'detach'", "detach"),
    (lambda s, b, h, q, k: s**7, "this power", "s**7"),
    (lambda s, b, h, q, k: s // 2, "floor(a / b)", "s // 2"),
    (lambda s, b, h, q, k: q > k, "returns a bool", ""),
    (lambda s, b, h, q, k: (s, s), "returns tuple", ""),
    (lambda s, b, h, q, k: s + "1", "expected an expression", 's + "1"'),
    (lambda s, b, h, q: s, "expected score, b, h, q, k", None),
    (lambda s, b, h, q, k: functools.reduce(lambda a, _: a * s, range(300), s), "nodes", None),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_refused_is_said_with_its_line(case):
    function, words, line = REFUSED[case]
    with pytest.raises(ValueError, match="expected") as caught:
        trace(function)
    assert words in str(caught.value)
    if line is not None:
        assert isinstance(caught.value, TraceError)
        assert f"{__file__}:" in str(caught.value)
        assert line in str(caught.value)


def test_errors_of_the_function_are_its_own():
    with pytest.raises(NameError):
        trace(lambda s, b, h, q, k: s + undefined)  # noqa: F821
    with pytest.raises(ZeroDivisionError):
        trace(lambda s, b, h, q, k: s + 1 / 0)
    with pytest.raises(TypeError, match="expected a function"):
        trace(3)


def test_threads_trace_at_a_time():
    def mod(tensor):
        def score_mod(s, b, h, q, k):
            time.sleep(1e-4)
            return s * tensor + ALONE

        return score_mod

    scales = [torch.tensor(float(i)) for i in range(64)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda scale: trace(mod(scale)), scales))
    for bound, scale in zip(found, scales, strict=True):
        assert_values(bound.values, {"tensor": scale, "ALONE": ALONE})


def test_a_divisor_of_0_is_refused():
    n = 0
    with pytest.raises(ValueError, match=r"n is 0 in 'q // n': expected a divisor"):
        trace(None, lambda b, h, q, k: q // n == k)


def test_the_value_needs_no_torch():
    code = (
        "import sys; from pyflash.variant import parse; v = parse('a: s where k <= q'); v.key;"
        "from pyflash.variant import bytecode, cpp, derivative, tiles, structure;"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_what_the_guide_shows_runs():
    text = (Path(__file__).parents[2] / "docs/guides/variants.md").read_text()
    known: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(example, known)
