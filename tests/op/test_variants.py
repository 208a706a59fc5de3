"""Attention with a variant on the CPU: every named one, padded and packed, beside its reference."""

from __future__ import annotations

import math
import sys
from itertools import product

import pytest
import torch
from support.variants import expect_by_pairs, values_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import pyflash
from pyflash.config import DType
from pyflash.op.options import OPTIONS
from pyflash.op.variants.arguments import Captured, captured_of, summed_of
from pyflash.op.variants.gradients import config_for, select
from pyflash.op.variants.reference import expect
from pyflash.variant import bind, parse
from pyflash.variant.library import named, names
from pyflash.variant.parser import normal_of
from pyflash.variant.tiles import Problem

ALIBI = "alibi(slope: f32[1]): s + slope[h] * (k - q) where k <= q"
SLOPES = torch.tensor([0.5, 0.25])
# One query, fewer and more queries than keys, a ragged block, and heads that share keys.
PROBLEMS = [
    Problem(20, 24, 2, 2),
    Problem(1, 24, 2, 3),
    Problem(30, 12, 1, 1),
    Problem(24, 24, 2, 4),
]


def make(problem: Problem, heads_kv: int, dtype: torch.dtype = torch.float16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(problem.q_len)
    sizes = ((problem.q_len, problem.heads), (problem.k_len, heads_kv), (problem.k_len, heads_kv))
    return [torch.randn(problem.batch, *size, 32, generator=generator).to(dtype) for size in sizes]


@pytest.mark.parametrize("problem", PROBLEMS, ids=range(len(PROBLEMS)))
@pytest.mark.parametrize("name", names())
def test_it_is_its_reference(name, problem):
    heads_kv = 2 if problem.heads == 4 else problem.heads
    inputs = make(problem, heads_kv)
    tensors = values_of(name, problem)
    found = pyflash.attention(*inputs, variant=name, tensors=tensors, return_lse=True)
    expect_by_pairs(name, *inputs, named(name).example(problem)).check(*found)
    expect(*inputs, variant=name, tensors=tensors).check(*found)


@pytest.mark.parametrize("name", names())
def test_packed_sequences_are_their_own(name):
    """Sequence b is batch b of a padded call of its length."""
    problem = Problem(20, 24, 3, 2)
    q, k, v = make(problem, 2)
    lengths_q, lengths_k = (20, 0, 13), (24, 7, 13)
    packed = [
        torch.cat([x[b, :n] for b, n in enumerate(lengths)])
        for x, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k))
    ]
    starts = [
        torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    ]
    tensors = values_of(name, problem)
    found = pyflash.attention_varlen(
        *packed, *starts, 20, 24, variant=name, tensors=tensors, return_lse=True
    )
    expect(*packed, *starts, variant=name, tensors=tensors).check(*found)


WINDOWS = [{}, {"causal": True}, {"window_left": 5}, {"window_left": 3, "window_right": 4}]
SCORES = [{}, {"softcap": 2.0}, {"softmax_scale": 0.7}]
SINKS = [{}, {"sinks": torch.tensor([0.5, -math.inf])}]
CONFIGS = [
    {},
    {"config": "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"},
    {"config": "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles+opt_softmax"},
]


@pytest.mark.parametrize("variant", [ALIBI, "a: s where (k % 3 != 0) | (q == k)", "a: tanh(s)"])
@pytest.mark.parametrize(
    "options",
    [a | b | c | d for a, b, c, d in product(WINDOWS, SCORES, SINKS, CONFIGS)],
    ids=lambda options: "+".join(options) or "none",
)
def test_it_composes_with_options(variant, options):
    problem = Problem(70, 90, 1, 2)
    inputs = make(problem, 1)
    tensors = {"slope": SLOPES} if "slope" in variant else {}
    found = pyflash.attention(*inputs, variant=variant, tensors=tensors, return_lse=True, **options)
    options = {name: x for name, x in options.items() if name != "config"}
    expect(*inputs, variant=variant, tensors=tensors, **options).check(*found)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_a_mask_hides_is_not_read(value):
    q, k, v = make(Problem(40, 40, 1, 2), 2)
    expected = pyflash.attention(q, k[:, :30], v[:, :30])
    k[:, 30:], v[:, 30:] = value, value
    out = pyflash.attention(q, k, v, variant="a(n: i32): s where k < n", tensors={"n": 30})
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-3)


def test_rows_without_a_pair():
    inputs = make(Problem(20, 24, 1, 2), 2)
    for variant in ("a: s where q < 3", "a: where(q < 3, s, -inf)", "a: s + log(f32(q < 3))"):
        out, lse = pyflash.attention(*inputs, variant=variant, return_lse=True)
        assert (out[:, 3:] == 0).all()
        assert (lse[..., 3:] == -math.inf).all()
        assert lse[..., :3].isfinite().all()


def test_an_equal_variant_is_the_same_one():
    texts = ["a: s where k <= q", "b: where(q >= k, s, -inf)", "c: s where ~(k > q)"]
    variants = [parse(text) for text in texts]
    assert len({variant.key for variant in variants}) == 1
    inputs = make(Problem(20, 24, 1, 2), 2)
    first, *others = (pyflash.attention(*inputs, variant=variant) for variant in variants)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("name", names())
def test_the_portable_text_is_the_variant(name):
    variant = named(name).variant
    assert normal_of(variant.portable).key == variant.key
    assert normal_of(variant.portable) == variant


def test_ways_to_say_a_variant():
    inputs = make(Problem(20, 24, 1, 2), 2)
    value = parse(ALIBI)
    ways = [
        {"variant": ALIBI, "tensors": {"slope": SLOPES}},
        {"variant": value, "tensors": {"slope": SLOPES}},
        {"variant": bind(value, slope=SLOPES)},
        {"variant": bind(value, slope=SLOPES * 0), "tensors": {"slope": SLOPES}},
    ]
    first, *others = (pyflash.attention(*inputs, **way) for way in ways)
    assert all(torch.equal(first, other) for other in others)


GOOD = {"variant": ALIBI, "tensors": {"slope": SLOPES}}
WRONG = [
    ({"variant": 3}, TypeError, "variant is int: expected a Variant"),
    ({"variant": "alibiii"}, ValueError, r"no variant is called.*did you mean alibi\?"),
    ({"variant": "a: s +"}, ValueError, "pyflash: variant: "),
    ({"variant": ALIBI, "tensors": {}}, ValueError, "slope of alibi has no value"),
    ({"variant": ALIBI, "tensors": {"slop": SLOPES}}, ValueError, "slop is no parameter"),
    (
        {"variant": ALIBI, "tensors": {"slope": SLOPES.double()}},
        ValueError,
        "slope is float64: expected f32",
    ),
    ({"variant": ALIBI, "tensors": {"slope": SLOPES[None]}}, ValueError, "has 2 axes: expected 1"),
    ({"variant": ALIBI, "tensors": {"slope": SLOPES[:0]}}, ValueError, "expected some elements"),
    (
        {"variant": ALIBI, "tensors": {"slope": SLOPES[:1].expand(1 << 31)}},
        ValueError,
        "expected at most 2147483647 elements in an axis",
    ),
    (
        {"variant": ALIBI, "tensors": {"slope": SLOPES[:1]}},
        ValueError,
        "outside of slope at a pair",
    ),
    ({"variant": "a(n: i32): s where k // n == 0", "tensors": {"n": 0}}, ValueError, "n is 0"),
    ({"tensors": {}}, ValueError, "tensors came without variant"),
    ({"backward": "reference"}, ValueError, "backward came without variant"),
    (GOOD | {"backward": "x"}, ValueError, "backward is 'x': expected 'reference'"),
    (GOOD | {"alibi_slopes": SLOPES}, ValueError, "alibi_slopes came with a variant"),
    (
        GOOD | {"num_splits": -1},
        ValueError,
        "num_splits = -1 came with a variant: expected a number",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_refused(arguments, error, words):
    inputs = make(Problem(20, 24, 1, 2), 2)
    with pytest.raises(error, match=words):
        pyflash.attention(*inputs, **arguments)


TEXT = parse(ALIBI).portable
BAD_TEXTS = [
    (ALIBI, "not portable"),
    (TEXT.replace("+.f32", "plus.f32"), "operation 'plus.f32'"),
    (TEXT.replace("index:h", "index:z"), "reads 'z'"),
    (TEXT.replace("load:0", "load:7"), "loads parameter 7"),
    (TEXT.replace("index:h load:0", "load:0"), "takes more than there is|leaves|needs more"),
    (TEXT.replace("slope:f32[1]", "slope:f64[1]"), "type 'f64'"),
]


@pytest.mark.parametrize(("text", "words"), BAD_TEXTS, ids=range(len(BAD_TEXTS)))
def test_the_op_refuses_other_texts(text, words):
    assert text != TEXT
    inputs = make(Problem(20, 24, 1, 2), 2)
    with pytest.raises(RuntimeError, match=words):
        torch.ops.pyflash.fwd_variant(*inputs, text, [SLOPES], [], [])


def test_the_op_is_as_torch_expects_ops():
    inputs = make(Problem(9, 10, 1, 2), 2)
    bound = torch.tensor([0, 4, 9], dtype=torch.int32)
    calls = [
        (*inputs, TEXT, [SLOPES], [], []),
        (*inputs, parse("a(c: f32, n: i32): s * c where k < n").portable, [], [0.5], [5]),
        (*(x[0, :9] for x in inputs), TEXT, [SLOPES], [], [], bound, bound, 5, 5),
    ]
    for call in calls:
        torch.library.opcheck(torch.ops.pyflash.fwd_variant.default, call)


def test_gradients_are_laid_out_as_graphs_expect():
    inputs, bound = make(Problem(9, 7, 1, 2), 1), torch.tensor([0, 5, 9], dtype=torch.int32)
    slopes = SLOPES.clone().requires_grad_()
    of_gradients = torch.ops.pyflash.bwd_variant.default
    schema = torch.ops.pyflash.fwd_variant.default._schema
    defaults = {x.name: x.default_value for x in schema.arguments}
    names_taken = [x.name for x in of_gradients._schema.arguments][1:]
    padded = (*inputs, TEXT, [slopes], [], [])
    packed = (*(x[0, :7] for x in inputs), TEXT, [slopes], [], [], bound, bound, 5, 5)
    for call in (padded, packed):
        q = call[0]
        for grad_out in (torch.randn_like(q), torch.ones(()).half().expand(q.shape)):
            rest = [defaults[name] for name in names_taken[len(call) :]]
            torch.library.opcheck(
                of_gradients,
                (grad_out, *call, *rest),
                test_utils=("test_schema", "test_faketensor"),
            )


def test_an_op_takes_a_variant_in_one_line():
    """Compilers put what an op takes into comments."""
    assert all(len(named(name).variant.portable.splitlines()) == 1 for name in names())


def test_a_graph_has_the_text_as_a_constant():
    q, k, v = make(Problem(20, 24, 1, 2), 2)
    calls = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        calls.extend(node for node in graph.graph.nodes if "fwd_variant" in str(node.target))
        return graph

    @torch.compile(fullgraph=True, backend=backend)
    def run(q: Tensor, k: Tensor, v: Tensor, slope: Tensor, reach: int) -> Tensor:
        out = pyflash.attention(q, k, v, variant="alibi", tensors={"slope": slope})
        values = {"slope": slope, "reach": reach}
        return out + pyflash.attention(q, k, v, variant="soft_window", tensors=values)

    found = run(q, k, v, SLOPES, 4)
    expected = [
        pyflash.attention(q, k, v, variant=name, tensors={"slope": SLOPES} | more)
        for name, more in (("alibi", {}), ("soft_window", {"reach": 4}))
    ]
    assert torch.equal(found, sum(expected))
    texts = [node.args[3] if len(node.args) > 3 else node.kwargs["text"] for node in calls]
    assert texts == [named(name).variant.portable for name in ("alibi", "soft_window")]


@pytest.mark.parametrize(
    ("variant", "tensors"),
    [
        (ALIBI, {"slope": SLOPES}),
        ("bias(t: f32[2]): s + t[q, k] where k <= q + 3", {"t": torch.randn(20, 24)}),
        ("cap(c: f32[0]): c * tanh(s / c) where q > 2", {"c": torch.tensor(2.0)}),
        ("root(t: f32[1]): s + sqrt(t[k]) where k < 8", {"t": (torch.arange(24) < 8).float()}),
        ("ids(d: i32[1]): s where d[q] == d[k]", {"d": torch.arange(24, dtype=torch.int32) // 5}),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_are_those_of_the_formula(variant, tensors, packed):
    inputs = [x.requires_grad_() for x in make(Problem(20, 24, 1, 2), 1)]
    tensors = {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in tensors.items()}
    sinks = torch.tensor([0.5, 1.0], requires_grad=True)
    leaves = [*inputs, sinks, *(x for x in tensors.values() if x.requires_grad)]
    options = {"variant": variant, "tensors": tensors, "sinks": sinks}
    if packed:
        starts = [torch.tensor([0, n], dtype=torch.int32) for n in (20, 24)]
        out = pyflash.attention_varlen(*(x[0] for x in inputs), *starts, 20, 24, **options)[None]
    else:
        out = pyflash.attention(*inputs, **options)
    grad_out = torch.randn(out.shape)
    found = torch.autograd.grad(out, leaves, grad_out.to(out.dtype))
    wide = [x.detach().double().requires_grad_() for x in leaves]
    captured = dict(zip((n for n, x in tensors.items() if x.requires_grad), wide[4:], strict=True))
    captured = {n: captured.get(n, x) for n, x in tensors.items()}
    expected_out = formula(wide[:3], wide[3], variant, captured)
    expected = torch.autograd.grad(expected_out, wide, grad_out.half().double())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-3, atol=2e-3)


def formula(inputs: list[Tensor], sinks: Tensor, text: str, tensors: dict[str, Tensor]) -> Tensor:
    """Written once more, in torch's words."""
    q, k, v = inputs
    scores = torch.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]) / math.sqrt(q.shape[-1])
    i, j = torch.arange(20)[:, None], torch.arange(24)
    if "slope" in tensors:
        scores = scores + tensors["slope"].view(2, 1, 1) * (j - i)
        shown = j <= i
    elif text.startswith("bias"):
        scores, shown = scores + tensors["t"], j <= i + 3
    elif text.startswith("cap"):
        scores, shown = tensors["c"] * torch.tanh(scores / tensors["c"]), i + 0 * j > 2
    elif text.startswith("root"):
        visible = torch.where(j < 8, tensors["t"], 1.0)
        scores, shown = scores + torch.sqrt(visible), (j < 8) + 0 * i > 0
    else:
        shown = tensors["d"][:20, None] == tensors["d"]
    scores = scores.masked_fill(~shown, -math.inf)
    scores = torch.cat([scores, sinks.view(1, 2, 1, 1).expand(1, 2, 20, 1)], -1)
    return torch.einsum("bhqk,bkd->bqhd", torch.softmax(scores, -1)[..., :24], v[:, :, 0])


def test_autocast_casts_and_vmap_is_refused():
    q, k, v = (x.float() for x in make(Problem(20, 24, 1, 2), 2))
    with torch.autocast("cpu", torch.bfloat16):
        out = pyflash.attention(q, k, v, **GOOD)
    assert out.dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="does not support vmap"):
        torch.vmap(lambda q: pyflash.attention(q[None], k.half(), v.half(), **GOOD))(q.half())


def test_a_parameter_that_the_normal_form_lacks_needs_a_value_all_the_same():
    inputs = make(Problem(20, 24, 1, 2), 2)
    variant = parse("a(n: i32): s where (n == n) & (k <= q)")
    assert not variant.captured
    out = pyflash.attention(*inputs, variant=variant, tensors={"n": 1})
    assert torch.equal(out, pyflash.attention(*inputs, variant="a: s where k <= q"))


CONFIG = "(FP16, 64, 128, 128, 8): sm80_bwd+stages_1"


@pytest.mark.parametrize("packed", [False, True])
def test_a_call_for_kernels_of_gradients_differentiates_by_them(packed):
    """In tensors without data. Sinks have theirs from out and lse."""
    called = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append((str(function), args))
            return function(*args, **(kwargs or {}))

    with FakeTensorMode():
        shape, packing = ((9,), (5, 5)) if packed else ((2, 9), (None, None))
        q = torch.empty(*shape, 4, 64, dtype=torch.half, requires_grad=True)
        k, v = (torch.empty(*shape, 2, 64, dtype=torch.half, requires_grad=True) for _ in range(2))
        starts = (torch.empty(3, dtype=torch.int32),) * 2 if packed else (None, None)
        slopes = torch.empty(2)
        sinks = torch.empty(4, requires_grad=True)
        out, _ = torch.ops.pyflash.fwd_variant(
            q, k, v, TEXT, [slopes], [], [], *starts, *packing, CONFIG, sinks=sinks
        )
        with Recorder():
            found = torch.autograd.grad(out, (q, k, v, sinks), torch.empty_like(out))
    assert [x.shape for x in found] == [x.shape for x in (q, k, v, sinks)]
    kernels = [args for name, args in called if name == "pyflash.bwd_variant_kernels.default"]
    assert [args[3] for args in kernels] == [CONFIG]
    assert "pyflash.bwd_variant.default" not in [name for name, _ in called]


OF_GRADIENTS = {
    "softmax_scale": 0.3,
    "causal": True,
    "window_left": 5,
    "window_right": 6,
    "attention_chunk": 4,
    "softcap": 2.0,
    "alibi_slopes": torch.ones(4),
    "deterministic": True,
}


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_kernels_of_gradients_get_each_option_of_the_call(name):
    not_beside_a_variant = {"dropout_p", "dropout_state"}
    in_backward = {name for name, option in OPTIONS.items() if option.in_backward}
    assert in_backward - not_beside_a_variant == OF_GRADIENTS.keys()
    given = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.pyflash.bwd_variant_kernels.default:
                names = [argument.name for argument in function._schema.arguments]
                defaults = {a.name: a.default_value for a in function._schema.arguments}
                given.append(defaults | dict(zip(names, args, strict=False)) | (kwargs or {}))
            return function(*args, **(kwargs or {}))

    with FakeTensorMode() as mode:
        q, k, v = torch.empty(3, 2, 9, 4, 64, dtype=torch.half).requires_grad_()
        value = OF_GRADIENTS[name]
        if isinstance(value, torch.Tensor):
            value = mode.from_tensor(value)
        out, _ = torch.ops.pyflash.fwd_variant(
            q, k, v, TEXT, [torch.empty(4)], [], [], None, None, None, None, CONFIG, **{name: value}
        )
        with Recorder():
            torch.autograd.grad(out, (q, k, v), torch.empty_like(out))
    (found,) = given
    assert found[name] is value if isinstance(value, torch.Tensor) else found[name] == value


def test_kernels_of_gradients_that_are_not_built_are_missed_in_forward():
    with pytest.raises(RuntimeError, match=r"gradients of variant .* is built .*compile=True.*"
                       r"or backward='reference'"):  # fmt: skip
        select(TEXT, DType.BF16, 64, (9, 0), packed=False, window_left=3)
    with pytest.raises(ValueError, match=r"dropout_p = 0\.5 came with a variant"):
        select(TEXT, DType.BF16, 64, (9, 0), packed=False, dropout_p=0.5)


SUMMED = "summed(slope: f32[1], doc: i32[1], cut: f32[0]): s + slope[h] * (k - q) + floor(cut)" \
    " where doc[k] == doc[q]"  # fmt: skip


def captured_with_gradients(*needed: str) -> Captured:
    given = {"slope": torch.ones(4), "doc": torch.ones(9).int(), "cut": torch.ones(())}
    for name in needed:
        given[name].requires_grad_()
    return captured_of(SUMMED, given)


def places_of(captured: Captured) -> tuple[int, ...]:
    return summed_of(captured, [x.requires_grad for x in captured.tensors])


def test_kernels_sum_gradients_of_floats_that_have_some_and_need_them():
    (slope,) = (
        place for place, x in enumerate(captured_with_gradients("slope").tensors) if x.shape == (4,)
    )
    assert places_of(captured_with_gradients("slope", "cut")) == (slope,)
    assert places_of(captured_with_gradients("cut")) == ()
    assert places_of(captured_with_gradients()) == ()


@pytest.mark.parametrize("by_switch", [False, True])
def test_gradients_of_what_is_captured_are_not_deterministic_by_kernels(by_switch):
    captured = captured_with_gradients("slope")
    torch.use_deterministic_algorithms(by_switch)
    try:
        with pytest.raises(RuntimeError, match=r"^pyflash: deterministic came with gradients of "
                           r"what a variant captures, which kernels sum in any order on a GPU: "
                           r"expected .*, or torch\.use_deterministic_algorithms\(True\) with "
                           r"backward='reference'"):  # fmt: skip
            config_for(torch.empty(1), captured, (), {"deterministic": not by_switch}, False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_kernel_without_the_gradients_of_what_is_captured_is_another():
    with pytest.raises(RuntimeError, match=r"the gradients, with those of what is captured, of "
                       r"variant .*_0'?\) is built .*compile=True"):  # fmt: skip
        select(TEXT, DType.BF16, 64, (9, 0), packed=False, summed=(0,))


def test_a_call_for_kernels_of_gradients_has_those_of_what_is_captured():
    """In tensors without data: of the places that need them, in their types and shapes."""
    called = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.pyflash.bwd_variant_kernels.default:
                called.append(args[4])
            return function(*args, **(kwargs or {}))

    with FakeTensorMode():
        q, k, v = (torch.empty(2, 9, 4, 64, dtype=torch.half) for _ in range(3))
        captured = captured_with_gradients("slope", "cut")
        packing = (None,) * 4
        out, _ = torch.ops.pyflash.fwd_variant(q, k, v, *captured, *packing, CONFIG)
        wanted = [x for x in captured.tensors if x.requires_grad]
        with Recorder():
            found = torch.autograd.grad(out, wanted, torch.empty_like(out))
    assert [list(places) for places in called] == [list(places_of(captured))]
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in wanted]


def test_what_graphs_take_for_constant_is_not_cached_itself():
    """torch.compile traces what functools.lru_cache wraps, whatever mark the cache has."""
    marked = [
        value
        for name, module in sys.modules.items()
        if name.startswith("pyflash.op")
        for value in vars(module).values()
        if getattr(value, "_dynamo_marked_constant", False)
    ]
    assert len(marked) > 5
    assert not [value for value in marked if hasattr(value, "cache_info")]
