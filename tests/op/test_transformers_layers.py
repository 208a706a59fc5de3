"""Layers of transformers that repeat the call of the op that the first of a forward pass made: few
functions run in Python, and a layer that differs does not repeat it."""

from __future__ import annotations

import pytest
import torch
from support.host_time import frames_of

pytest.importorskip("transformers")

from pyflash.integrations import packing
from pyflash.integrations import transformers as integration
from pyflash.integrations.packing import known_of
from pyflash.integrations.transformers_masks import make_mask
from pyflash.op.autograd import TORCH_API

BATCH, HEADS, HEADS_KV, SEQLEN, D_HEAD = 3, 4, 2, 9, 16
LAYER = torch.nn.Module()
LAYER.is_causal = True


def mask_of(padded: bool, seqlen_q: int = 1, **options):
    """Of the last queries; the first row has padding before its tokens."""
    given = torch.ones(BATCH, SEQLEN, dtype=torch.bool)
    given[0, :4] = False
    q_offset = SEQLEN - seqlen_q
    mask = given if padded else None
    return make_mask(
        BATCH, seqlen_q, SEQLEN, q_offset, 0, None, mask, True, device="cpu", **options
    )


def tensors_of(seed: int, seqlen_q: int = 1, capacity: int = SEQLEN, d_head: int = D_HEAD):
    """As a layer has them, (batch, heads, seqlen, d_head)."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(BATCH, seqlen_q, HEADS, d_head, generator=generator).half().transpose(1, 2)
    k, v = torch.randn(2, BATCH, HEADS_KV, capacity, d_head, generator=generator).half()
    return q, k, v


def layer(tensors, mask, **options):
    with torch.no_grad():
        return integration.attention_forward(LAYER, *tensors, mask, **options)[0]


def alone(tensors, mask, **options):
    """The same, of a mask that nothing is known about."""
    return layer(tensors, mask.clone().expand(mask.shape), **options)


def fresh(mask):
    """The same mask, another tensor."""
    column = mask[:, :, :1, :1].clone()
    return column.expand(mask.shape)


@pytest.fixture
def read_masks(monkeypatch):
    """Those that were read, each time."""
    read, pack = [], packing._pack
    monkeypatch.setattr(packing, "_pack", lambda mask, *key: read.append(mask) or pack(mask, *key))
    return read


CASES = pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])


@CASES
@pytest.mark.parametrize("capacity", [SEQLEN, SEQLEN + 3], ids=["dynamic", "static"])
def test_layers_give_what_each_gives_alone(padded, capacity):
    mask = mask_of(padded)
    if capacity > SEQLEN and not padded:
        mask = make_mask(BATCH, 1, capacity, SEQLEN - 1, 0, None, None, True, device="cpu")
    for seed in range(3):
        tensors = tensors_of(seed, capacity=capacity)
        for x in tensors[1:]:
            x[:, :, SEQLEN:] = torch.nan
        assert torch.equal(layer(tensors, mask), layer(tensors, fresh(mask)))
    assert len(known_of(mask).calls) == 1


DIFFERENT = {
    "scaling": ({"scaling": 0.3}, {"scaling": 0.5}),
    "softcap": ({}, {"softcap": 2.0}),
}


@CASES
@pytest.mark.parametrize("name", DIFFERENT)
def test_layers_with_other_options(name, padded):
    mask = mask_of(padded)
    for seed, options in enumerate([*DIFFERENT[name], *DIFFERENT[name]]):
        tensors = tensors_of(seed)
        assert torch.equal(layer(tensors, mask, **options), layer(tensors, fresh(mask), **options))
    assert len(known_of(mask).calls) == 2


@CASES
def test_sinks_are_those_of_the_layer(padded):
    mask = mask_of(padded)
    for seed in range(3):
        tensors, sinks = tensors_of(seed), torch.full((HEADS,), 1.0 + seed)
        out = layer(tensors, mask, s_aux=sinks)
        assert torch.equal(out, layer(tensors, fresh(mask), s_aux=sinks))
        assert not torch.equal(out, layer(tensors, mask))


@CASES
def test_layers_of_other_layouts(padded):
    mask = mask_of(padded)
    layouts = {
        "as it was": lambda x: x,
        "tokens first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "a slice": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
        "not aligned": lambda x: torch.cat([x[..., :1], x], -1)[..., 1:],
        "shifted": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
        "of float32": lambda x: x.float(),
    }
    LAYER.config = type("Config", (), {"dtype": torch.float16, "_is_quantized": True})
    for _ in range(2):
        for change in layouts.values():
            tensors = tensors_of(0)
            expected = layer(tensors, fresh(mask))
            out = layer([change(x) for x in tensors], mask)
            torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)


@CASES
@pytest.mark.parametrize("seqlen_q", [1, 4])
def test_other_numbers_of_queries_and_heads(padded, seqlen_q):
    mask = mask_of(padded, seqlen_q)
    for seed, d_head in enumerate([16, 24, 12, 16]):
        tensors = tensors_of(seed, seqlen_q, d_head=d_head)
        assert torch.equal(layer(tensors, mask), layer(tensors, fresh(mask)))


@CASES
def test_a_mask_that_was_written_to_is_read_again(padded):
    mask = mask_of(padded)
    tensors = tensors_of(0)
    layer(tensors, mask)
    if padded:
        mask[0, 5, 0, 0] = 0
        mask[0, 4, 0, 0] = 0
        expected = layer(tensors, fresh(mask))
        assert not torch.equal(layer(tensors, fresh(mask_of(padded))), expected)
        assert torch.equal(layer(tensors, mask), expected)
    mask.zero_()
    assert not known_of(mask).calls


@CASES
def test_a_layer_with_gradients_is_recorded(padded):
    mask = mask_of(padded)
    tensors = tensors_of(0)
    out = layer(tensors, mask)
    inputs = [x.detach().requires_grad_() for x in tensors]
    recorded = integration.attention_forward(LAYER, *inputs, mask)[0]
    torch.testing.assert_close(recorded, out, rtol=2e-3, atol=2e-3)
    assert all(x.abs().sum() > 0 for x in torch.autograd.grad(recorded.float().sum(), inputs)[2:])


@CASES
@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"position_bias": torch.ones(1)}, "position_bias is given"),
        ({"output_attentions": True}, "output_attentions is True"),
        ({"cu_seq_lens_q": torch.tensor([0, 1])}, "expected cu_seq_lens_q and cu_seq_lens_k"),
    ],
    ids=["bias", "weights", "lengths"],
)
def test_a_later_layer_is_refused_as_the_first(padded, told, words):
    mask = mask_of(padded)
    layer(tensors_of(0), mask)
    with pytest.raises(ValueError, match=words):
        layer(tensors_of(1), mask, **told)


@CASES
def test_a_later_layer_drops_what_it_is_asked_to(padded):
    mask = mask_of(padded)
    tensors = tensors_of(0)
    out = layer(tensors, mask)
    dropped = layer(tensors, mask, dropout=0.5)
    assert not torch.equal(dropped, out)
    assert not torch.equal(layer(tensors, mask, dropout=0.5), dropped), "drawn in each call"


def test_a_mask_of_inference_is_read_once_as_long_as_nobody_writes_to_it(read_masks):
    with torch.inference_mode():
        mask = mask_of(True)
        tensors = tensors_of(0)
        first = layer(tensors, mask)
        assert torch.equal(layer(tensors, mask), first)
        assert len(read_masks) == 1
        mask[0, 5, 0, 0] = 0
        mask[0, 4, 0, 0] = 0
        assert not torch.equal(layer(tensors, mask), first)
        assert len(read_masks) == 2


def test_a_mask_made_in_inference_is_that_of_when_it_was_made():
    with torch.inference_mode():
        given = torch.ones(BATCH, SEQLEN, dtype=torch.bool)
        given[0, :4] = False
        mask = make_mask(BATCH, 1, SEQLEN, SEQLEN - 1, 0, None, given, True, device="cpu")
        tensors = tensors_of(0)
        first = layer(tensors, mask)
        given[0, :7] = False
        assert torch.equal(layer(tensors, mask), first)
        assert torch.equal(alone(tensors, mask), first)


@pytest.mark.skipif(TORCH_API == "public", reason="without private parts of torch there are more")
@pytest.mark.parametrize(("padded", "most"), [(False, 12), (True, 12)], ids=["whole", "padded"])
def test_few_functions_run_in_python(padded, most):
    mask = mask_of(padded)
    layer(tensors_of(0), mask)
    tensors = tensors_of(1)
    frames = frames_of(lambda: layer(tensors, mask))
    assert frames["attention_forward"] == frames["repeated"] == 1
    assert frames.total() <= most, frames
