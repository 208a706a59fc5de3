"""`attention_paged` with a variant on the CPU, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from support.paged_variants import OPTIONS, PROBLEMS, TEXTS, PagedCall

import pyflash
from pyflash.op.variants.features import are_gathered
from pyflash.variant import parse
from pyflash.variant.bound import bind


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", TEXTS)
def test_it_is_its_formula(name, problem):
    call = PagedCall(name, PROBLEMS[problem])
    options = {"variant": call.text, "tensors": call.tensors, "return_lse": True}
    call.check(*pyflash.attention_paged(*call.inputs, **call.packing, **options))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", TEXTS)
def test_it_composes_with_options(name, option):
    options = OPTIONS[option]
    call = PagedCall(name, PROBLEMS["packed"], options=options)
    results = pyflash.attention_paged(
        *call.inputs, **call.packing, variant=call.text, tensors=call.tensors, return_lse=True,
        **options,
    )  # fmt: skip
    call.check(*results, **options)


def test_a_cache_of_rows():
    """A row of the cache is a page."""
    torch.manual_seed(0)
    lengths = torch.tensor([70, 33, 0], dtype=torch.int32)
    q = torch.randn(3, 2, 4, 64).half()
    k, v = (torch.randn(5, 96, 2, 64).half() for _ in "kv")
    rows = torch.tensor([4, 0, 2], dtype=torch.int32)
    text = "m(slope: f32[1]): s + slope[h] * k where k + q_len <= k_len + q"
    tensors = {"slope": torch.rand(4)}
    out = pyflash.attention_cached(q, k, v, lengths, rows, variant=text, tensors=tensors)
    for b, (n, row) in enumerate(zip(lengths.tolist(), rows.tolist(), strict=True)):
        alone = pyflash.attention(
            q[b : b + 1], k[row : row + 1, :n], v[row : row + 1, :n], variant=text, tensors=tensors
        )
        torch.testing.assert_close(out[b : b + 1], alone, rtol=0, atol=1e-3)


def test_a_bound_variant_and_a_graph():
    call = PagedCall("alibi", PROBLEMS["packed"])
    eager = pyflash.attention_paged(
        *call.inputs, **call.packing, variant=call.text, tensors=call.tensors
    )

    def layer(q, *others):
        return pyflash.attention_paged(
            q, *others, **call.packing, variant=call.text, tensors=call.tensors
        )

    compiled = torch.compile(layer, fullgraph=True, backend="eager")(*call.inputs)
    assert torch.equal(compiled, eager)
    bound = bind(parse(call.text), **call.tensors)
    assert torch.equal(pyflash.attention_paged(*call.inputs, **call.packing, variant=bound), eager)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k_scale": torch.ones(()), "v_scale": torch.ones(())}, "k_scale came with a variant"),
        ({"out": torch.empty(0)}, "out came with a variant"),
        ({"batch_invariant": True}, "batch_invariant came with a variant"),
        ({"alibi_slopes": torch.ones(4)}, "alibi_slopes came with a variant"),
        ({"tensors": {}}, "slope"),
    ],
)
def test_what_does_not_go_with_a_variant(options, words):
    call = PagedCall("alibi", PROBLEMS["packed"])
    with pytest.raises(ValueError, match=words):
        pyflash.attention_paged(
            *call.inputs,
            **call.packing,
            **{"variant": call.text, "tensors": call.tensors, **options},
        )


@pytest.mark.parametrize("given", [{"tensors": {}}, {"compile": True}], ids=str)
def test_what_does_not_go_without_one(given):
    call = PagedCall("causal", PROBLEMS["packed"])
    with pytest.raises(ValueError, match="came without variant"):
        pyflash.attention_paged(*call.inputs, **call.packing, **given)


@pytest.mark.parametrize("problem", ["packed", "one_query"])
def test_opcheck(problem):
    call = PagedCall("alibi", PROBLEMS[problem])
    inputs = (*call.inputs, parse(call.text).portable, [call.tensors["slope"]], [], [])
    op = torch.ops.pyflash.fwd_paged_variant.default
    torch.library.opcheck(op, inputs, call.packing)


@pytest.mark.parametrize(
    ("page_size", "most_pages", "gathered"),
    [(1, 9, True), (2, 9, True), (4, 9, False), (16, 2, False), (48, 2, True), (48, 1, False)],
)
def test_pages_that_are_no_boxes_are_gathered(page_size, most_pages, gathered):
    cache, table = torch.empty(9, page_size, 2, 64), torch.empty(3, most_pages)
    assert are_gathered(cache, table) == gathered


@pytest.mark.parametrize("of", ["q", "slope"])
def test_gradients_are_refused(of):
    call = PagedCall("alibi", PROBLEMS["packed"])
    (call.inputs[0] if of == "q" else call.tensors["slope"]).requires_grad_()
    options = {"variant": call.text, "tensors": call.tensors}
    with pytest.raises(RuntimeError, match="have no gradients"):
        pyflash.attention_paged(*call.inputs, **call.packing, **options)
    op, captured = torch.ops.pyflash.fwd_paged_variant, [call.tensors["slope"]]
    with pytest.raises(RuntimeError, match="have no gradients"):
        op(*call.inputs, parse(call.text).portable, captured, [], [])
    with torch.no_grad():
        pyflash.attention_paged(*call.inputs, **call.packing, **options)
