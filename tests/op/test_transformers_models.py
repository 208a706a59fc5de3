"""Models of transformers that asked for more than pyflash was told, or for other tensors."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from support.llama import check, make_ids, make_mask, make_models
from support.tiny_models import model_classes
from support.transformers_sweep import sweep
from torch import nn
from transformers import modeling_utils

from pyflash.integrations import transformers as integration
from pyflash.op.reference import attention_ref, tolerance

integration.register()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("XGLMForCausalLM", "XGLMForCausalLM does not declare support of flash attention"),
        ("T5ForConditionalGeneration", "does not declare support of flash attention"),
        ("FalconForCausalLM", "does not take its attention from transformers' AttentionInterface"),
        ("GPTNeoForCausalLM", "does not take its attention from transformers' AttentionInterface"),
    ],
)
def test_a_model_without_flash_attention_is_refused_when_it_is_made(name, words):
    model_class = getattr(transformers, name)
    with torch.device("meta"), pytest.raises(ValueError, match=f"^pyflash: .*{words}"):
        model_class._from_config(model_class.config_class(), attn_implementation="pyflash")


@pytest.mark.parametrize("implementation", ["pyflash", {"": "pyflash"}, "paged|pyflash"])
@pytest.mark.filterwarnings("ignore:The `paged|:FutureWarning")
def test_and_when_it_is_told_later(implementation):
    config = transformers.XGLMConfig(
        vocab_size=8, d_model=16, ffn_dim=16, num_layers=1, attention_heads=2
    )
    model = transformers.XGLMForCausalLM(config)
    with pytest.raises(ValueError, match="does not declare support of flash attention"):
        model.get_correct_attn_implementation("pyflash")
    model_class = type(model)
    model_class._can_set_attn_implementation_cached_value = True
    try:
        with pytest.raises(ValueError, match="does not declare support of flash attention"):
            model.set_attn_implementation(implementation)
    finally:
        del model_class._can_set_attn_implementation_cached_value


def test_registering_twice_wraps_once():
    before = modeling_utils.PreTrainedModel.get_correct_attn_implementation
    integration.register()
    assert modeling_utils.PreTrainedModel.get_correct_attn_implementation is before


@pytest.mark.parametrize(
    "name",
    [
        "Qwen2MoeForCausalLM",  # its window is in the mask function alone
        "Aimv2TextModel",  # causal by its mask, while its layers say that they are not
        "Phi4MultimodalVisionModel",  # the reverse
        "PaliGemmaForConditionalGeneration",  # makes its mask twice
        "PegasusXForConditionalGeneration",
        "DeepseekV3ForCausalLM",  # v of another head dimension than q
        "GptOssForCausalLM",
    ],
)
def test_models_whose_layers_say_less_than_their_masks(name):
    item = next(item for _, item in model_classes() if item.__name__ == name)
    outcome = sweep(item)
    assert outcome.kind == "equal", outcome
    assert outcome.n_calls > 0


class Layer(nn.Module):
    is_causal = True

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = transformers.LlamaConfig(dtype=dtype)
        self.projection = nn.Linear(8, 8, dtype=dtype)


def attend(layer: nn.Module, *qkv: torch.Tensor, **options) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in qkv)
    return integration.attention_forward(layer, q, k, v, None, **options)[0]


def normal(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("upcast", ["q", "qk", "qkv"])
def test_float32_of_adapters_is_cast_to_the_models_dtype(upcast, dtype):
    tensors = {name: normal(2, 9, 4, 16, dtype=dtype) for name in "qkv"}
    given = [x.float() if name in upcast else x for name, x in tensors.items()]
    out = attend(Layer(dtype), *given)
    assert torch.equal(out, attend(Layer(dtype), *tensors.values()))
    assert out.dtype == dtype


def test_float32_of_a_float32_model_stays_refused():
    x = normal(2, 9, 4, 16, dtype=torch.float32)
    with pytest.raises(ValueError, match="q is float32: expected float16 or bfloat16"):
        attend(Layer(torch.float32), x, x, x)


@pytest.mark.parametrize(("d_qk", "d_v"), [(24, 16), (16, 24), (20, 20), (12, 36), (192, 128)])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_other_head_dimensions_are_padded_and_cropped(d_qk, d_v, scaling):
    q, k, v = normal(2, 9, 4, d_qk), normal(2, 13, 2, d_qk), normal(2, 13, 2, d_v)
    out = attend(Layer(torch.float16), q, k, v, scaling=scaling)
    assert out.shape == (2, 9, 4, d_v)
    options = {"causal": True, "softmax_scale": scaling or d_qk**-0.5}
    width = max(d_qk, d_v)
    padded = [nn.functional.pad(x, (0, width - x.shape[-1])) for x in (q, k, v)]
    ref, pt16 = (
        attention_ref(*padded, **options, **dtype)[0][..., :d_v]
        for dtype in ({}, {"dtype": torch.float16})
    )
    assert (out.float() - ref).abs().max().item() <= tolerance(ref, pt16)


def test_slices_that_vectors_cannot_read_are_copied():
    fused = normal(2, 9, 4, 3 * 16 + 3)
    q, k, v = (fused[..., 1 + 16 * i : 17 + 16 * i] for i in range(3))
    out = attend(Layer(torch.float16), q, k, v)
    assert torch.equal(out, attend(Layer(torch.float16), *(x.contiguous() for x in (q, k, v))))


def test_a_config_may_make_a_decoder_bidirectional():
    """`config.is_causal = False` changes the mask function, not what the layers say."""
    models = make_models("llama", torch.float16, "cpu")
    ids, mask = make_ids("cpu"), make_mask("right", "cpu")
    for model in (models.ref, models.pt16, models.pyflash):
        model.config.is_causal = False
    with torch.no_grad():
        logits = [
            model(ids, attention_mask=mask).logits
            for model in (models.ref, models.pt16, models.pyflash)
        ]
    check(*logits, keep=mask)
    causal = make_models("llama", torch.float16, "cpu").ref(ids, attention_mask=mask).logits
    assert (causal - logits[0])[mask.bool()].abs().max() > 0.1
