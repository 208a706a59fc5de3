"""ALiBi on a GPU: every config that is built for it, every d_head, splits, packed sequences."""

import itertools

import pytest
import torch
from support.gpu_calls import built_for
from support.problems import Packed, Shape, make_inputs, make_packed

from pyflash import Features, attention, attention_varlen
from pyflash.op.backward import kernels
from pyflash.op.reference import expect, expect_varlen

pytestmark = pytest.mark.gpu

SHAPES = [
    Shape("many_tiles", 2, 300, 517, 4, heads_kv=2),
    Shape("fewer_keys", 1, 257, 67, 2),
    Shape("decode", 2, 1, 4001, 8, heads_kv=2),
]
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "chunks": {"causal": True, "attention_chunk": 100},
    "window": {"window_left": 70, "window_right": 20},
}


def slopes_of(shape, each):
    size = (shape.batch, shape.heads) if each else (shape.heads,)
    return torch.rand(size, device="cuda") * 0.5


def test_every_config_that_is_built_for_it():
    configs = built_for(Features(alibi_slopes=True))
    assert {type(c).__name__ for c in configs} >= {"FlashForwardKernelConfig"}
    for config, shape, options in itertools.product(configs, SHAPES, MASKS.values()):
        dtype = torch.float16 if config.dtype.name == "FP16" else torch.bfloat16
        inputs = make_inputs(shape, dtype, config.d_head, "cuda")
        slopes = slopes_of(shape, each=True)
        expected = expect(*inputs, alibi_slopes=slopes, **options)
        for num_splits in (0, 1, 3):
            call = {"alibi_slopes": slopes, "config": str(config), "num_splits": num_splits}
            try:
                out, lse = attention(*inputs, return_lse=True, **call, **options)
            except RuntimeError as error:
                if "cannot run" not in str(error):
                    raise
                continue  # its warpgroups pack more heads than they have rows
            expected.check(out, lse)


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("d_head", [16, 40, 64, 96, 128, 192, 256])
def test_every_head_dimension(d_head, options):
    if d_head > max(c.d_head for c in built_for(Features(alibi_slopes=True))):
        pytest.skip(f"no config for d_head {d_head} is built")
    for shape in SHAPES:
        inputs = make_inputs(shape, torch.bfloat16, d_head, "cuda")
        slopes = slopes_of(shape, each=False)
        out, lse = attention(*inputs, return_lse=True, alibi_slopes=slopes, **options)
        expect(*inputs, alibi_slopes=slopes, **options).check(out, lse)
        again = attention(*inputs, alibi_slopes=slopes, **options)
        assert torch.equal(out, again)


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
def test_packed_sequences(options):
    inputs = make_packed(
        Packed("", (113, 0, 300, 1), (127, 5, 200, 500), 4, 2), torch.float16, 64, "cuda"
    )
    slopes = torch.rand(4, 4, device="cuda") * 0.5
    out, lse = attention_varlen(*inputs, return_lse=True, alibi_slopes=slopes, **options)
    expect_varlen(*inputs[:5], alibi_slopes=slopes, **options).check(out, lse)


def test_gradients_are_refused(monkeypatch):
    """Where no kernel of op backward takes the call."""
    monkeypatch.setattr(kernels, "choice", lambda *_: ("", "none is asked"))
    q, k, v = (x.requires_grad_() for x in make_inputs(SHAPES[0], torch.float16, 64, "cuda"))
    with pytest.raises(RuntimeError, match="alibi_slopes has no gradients on a GPU"):
        attention(q, k, v, alibi_slopes=slopes_of(SHAPES[0], each=False))
