"""Who promises that captured tensors stay as they are, and what ops are told of it."""

from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

import pyflash
from pyflash.op.variants import autograd
from pyflash.op.variants import call as variants_call
from pyflash.op.variants.arguments import captured_of, promise_of
from pyflash.variant import bind, parse, trace

PADDING = parse("padding(lengths: i32[1]): s where k < lengths[b]")
CONFIG = "(BF16, 64, 128, 128, 2): sm90_bwd+stages_2"


def frozen(lengths=(5, 7)):
    return bind(PADDING, lengths=torch.tensor(lengths, dtype=torch.int32)).frozen()


def inputs(**options):
    return torch.randn(3, 2, 9, 4, 64, **options).half().unbind()


def promised(variant, q=None) -> list[int] | None:
    q = inputs()[0] if q is None else q
    return promise_of(variant, captured_of(variant, None), q)


@pytest.fixture
def told(monkeypatch) -> list[list[int] | None]:
    """What the op is told, call by call."""
    found: list[list[int] | None] = []
    call, call_op = variants_call.call, variants_call.call_op

    def record(op, *arguments, **options):
        found.append(arguments[-1])
        return call(op, *arguments, **options)

    def record_op(op, q, k, v, others, options):
        found.append(others[-1])
        return call_op(op, q, k, v, others, options)

    monkeypatch.setattr(variants_call, "call", record)
    monkeypatch.setattr(variants_call, "call_op", record_op)
    return found


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_a_frozen_value_promises(told, needs_gradients):
    q, k, v = (x.detach().requires_grad_(needs_gradients) for x in inputs())
    one, other = frozen(), frozen()
    plain = bind(PADDING, **one.values)
    results = [pyflash.attention(q, k, v, variant=x) for x in (one, one, other, plain)]
    assert told == [[one.promise, 0], [one.promise, 0], [other.promise, 0], None]
    assert 0 < one.promise < other.promise
    assert all(torch.equal(x, results[0]) for x in results)
    one.values["lengths"][1] = 3
    torch.testing.assert_close(
        pyflash.attention(q, k, v, variant=one), pyflash.attention(q, k, v, variant=plain)
    )
    assert told[-2] == [one.promise, 1]


def test_values_beside_it_promise_nothing(told):
    value = frozen()
    pyflash.attention(*inputs(), variant=value, tensors=dict(value.values))
    pyflash.attention(*inputs(), variant=PADDING, tensors=dict(value.values))
    assert told == [None, None]


def test_copies_promise_by_themselves():
    """Their tensors are others, as are those of another process."""
    value = frozen()
    copies = [copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))]
    numbers = [value.promise, *(x.promise for x in copies)]
    assert 0 not in numbers
    assert len(set(numbers)) == len(numbers)
    assert replace(value).promise == copy.copy(bind(PADDING, **value.values)).promise == 0


def test_a_value_has_the_tensors_that_it_was_frozen_with():
    values = {"lengths": torch.tensor([5, 7], dtype=torch.int32)}
    value = pyflash.variant.Bound(PADDING, values).frozen()
    first = values["lengths"]
    values["lengths"] = torch.tensor([1, 1], dtype=torch.int32)
    assert value.values["lengths"] is first


def test_tensors_without_a_count_of_writes():
    with torch.inference_mode():
        value = frozen()
        q = inputs()[0]
    assert promised(value, q) == [value.promise, -1]


def test_what_is_traced_promises_nothing():
    value, seen = frozen(), []
    assert promised(value) is not None

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        assert promised(value, inputs()[0]) is None
    with FakeTensorMode():
        fake = torch.empty(2, 9, 4, 64)
    assert promised(value, fake) is None

    def run(q):
        seen.append(promised(value, q))
        return q + 1

    make_fx(run)(inputs()[0])
    torch.jit.trace(run, inputs()[0], check_trace=False)
    assert seen[:2] == [None, None]


def test_a_graph_of_torch_compile_has_no_promise():
    value, graphs = frozen(), []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    q, k, v = inputs()
    run = torch.compile(lambda q: pyflash.attention(q, k, v, variant=value), backend=backend)
    torch.testing.assert_close(run(q), pyflash.attention(q, k, v, variant=value))
    nodes = [x for graph in graphs for x in graph.graph.nodes if "fwd_variant" in str(x.target)]
    assert nodes
    assert all(value.promise not in (x for a in node.args if isinstance(a, list) for x in a)
               for node in nodes)  # fmt: skip


def test_the_end_of_a_value_is_told(monkeypatch):
    ended = []
    monkeypatch.setattr(torch.ops.pyflash, "forget_made", ended.append)
    value = frozen()
    number = value.promise
    pyflash.attention(*inputs(), variant=value)
    assert ended == []
    del value
    gc.collect()
    assert ended == [number]


@pytest.mark.parametrize("keeps", [False, True])
def test_gradients_are_told(monkeypatch, keeps):
    monkeypatch.setattr(autograd, "keeps_promises", lambda _: keeps)
    given = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.pyflash.bwd_variant_kernels.default:
                names = [argument.name for argument in function._schema.arguments]
                given.append(dict(zip(names, args, strict=False)).get("promise"))
            return function(*args, **(kwargs or {}))

    with FakeTensorMode():
        q, k, v = torch.empty(3, 2, 9, 4, 64, dtype=torch.half).requires_grad_()
        lengths = torch.empty(2, dtype=torch.int32)
        out, _ = torch.ops.pyflash.fwd_variant(
            q, k, v, PADDING.portable, [lengths], [], [], *(None,) * 4, CONFIG, [7, 0]
        )
        with Recorder():
            torch.autograd.grad(out, (q, k, v), torch.empty_like(out))
    assert given == [[7, 0] if keeps else None]


def test_a_promise_has_a_version_of_each_tensor():
    q, k, v = inputs()
    lengths = torch.tensor([5, 7], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="promise has 1 numbers: expected its own and the"):
        torch.ops.pyflash.fwd_variant(q, k, v, PADDING.portable, [lengths], [], [], promise=[7])


def heads_first():
    return (x.transpose(1, 2) for x in inputs())


def test_who_makes_a_block_mask_promises_what_it_captures(told):
    lengths = torch.tensor([5, 7])
    words = torch.zeros(9)

    def mask(b, h, q, k):
        return k < lengths[b]

    blocks = [create_block_mask(mask, 2, None, 9, 9, "cpu") for _ in range(2)]
    calls = [
        {"block_mask": blocks[0]},
        {"block_mask": blocks[0], "score_mod": lambda s, b, h, q, k: s * 0.5},
        {"block_mask": blocks[1]},
        {"block_mask": blocks[0], "score_mod": lambda s, b, h, q, k: s + words[k]},
        {"score_mod": lambda s, b, h, q, k: s + words[k]},
    ]
    for call in calls[:1] * 2 + calls[2:]:
        pyflash.flex_attention(*heads_first(), **call)
    one, again, other, biased, no_mask = told
    assert one == again
    assert 0 < one[0] != other[0] > 0
    assert biased is no_mask is None
    pyflash.flex_attention(*heads_first(), **calls[1])
    assert told[-1][0] > 0


def test_a_block_mask_whose_lists_are_written_promises_anew(told):
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 9, 9, "cpu")
    for _ in range(2):
        pyflash.flex_attention(*heads_first(), block_mask=mask)
    mask.kv_num_blocks.zero_()
    pyflash.flex_attention(*heads_first(), block_mask=mask)
    assert told[0] == told[1] != told[2]
    assert None not in told


def test_a_traced_function_promises_nothing():
    lengths = torch.tensor([5, 7])
    assert trace(None, lambda b, h, q, k: k < lengths[b]).promise == 0


def test_packages_of_aotinductor_can_hold_what_the_op_has_by_default():
    """An empty list comes back from them as None."""
    defaults = [x.default_value for x in torch.ops.pyflash.fwd_variant.default._schema.arguments]
    assert [] not in defaults
