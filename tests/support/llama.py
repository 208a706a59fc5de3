"""Small models of transformers with random weights, one for each attention implementation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from pyflash.integrations import transformers as pyflash_transformers
from pyflash.op.reference import tolerance

pyflash_transformers.register()

VOCABULARY = 12
PADDING = 0
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
    "pad_token_id": PADDING,
    "initializer_range": 0.12,  # large enough for attention to matter in the logits
}
_DECODER = _SHAPE | {"num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None}

# name -> (model, config)
_MODELS = {
    "llama": (LlamaForCausalLM, lambda: LlamaConfig(**_DECODER)),
    "llama_with_dropout": (
        LlamaForCausalLM,
        lambda: LlamaConfig(**_DECODER, attention_dropout=0.1),
    ),
    "sliding_window": (MistralForCausalLM, lambda: MistralConfig(**_DECODER, sliding_window=7)),
    # Every second layer has a window; the scores are of the order of the cap.
    "capped": (
        Gemma2ForCausalLM,
        lambda: Gemma2Config(
            **_DECODER,
            head_dim=16,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=2.0,
            sliding_window=9,
        ),
    ),
    # Every second layer has a window. Every token goes through every expert: with fewer, rounding
    # changes which.
    "sinks": (
        GptOssForCausalLM,
        lambda: GptOssConfig(
            **_DECODER,
            head_dim=16,
            num_local_experts=2,
            num_experts_per_tok=2,
            sliding_window=9,
        ),
    ),
    # A partial rotary embedding gives q and k another memory layout than v.
    "neox": (
        GPTNeoXForCausalLM,
        lambda: GPTNeoXConfig(**_SHAPE, bos_token_id=None, eos_token_id=None),
    ),
    "encoder": (BertModel, lambda: BertConfig(**_SHAPE)),
}


@dataclass(frozen=True)
class Models:
    """Three models with the same weights, which are exact in the 16-bit type."""

    ref: PreTrainedModel  # fp32, attention by its formula
    pt16: PreTrainedModel  # 16 bits, PyTorch's attention
    pyflash: PreTrainedModel  # 16 bits


def make_models(name: str, dtype: torch.dtype, device: str, seed: int = 0) -> Models:
    model_class, config = _MODELS[name]
    torch.manual_seed(seed)
    weights = model_class(config()).to(dtype).state_dict()

    def make(implementation: str, of_dtype: torch.dtype) -> PreTrainedModel:
        # NOTE: `.to(dtype)` would round the frequencies of rotary embeddings, which stay in fp32.
        model = model_class._from_config(
            config(), attn_implementation=implementation, dtype=of_dtype
        )
        model.load_state_dict(weights)
        return model.to(device).eval()

    pt16 = "eager" if name in ("capped", "sinks") else "sdpa"  # PyTorch's has neither
    return Models(make("eager", torch.float32), make(pt16, dtype), make("pyflash", dtype))


BATCH, SEQLEN = 3, 37
# How many tokens each row of a padded batch has.
_LENGTHS = (SEQLEN, 21, 5)


def make_ids(device: str, batch: int = BATCH, seqlen: int = SEQLEN, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (batch, seqlen), generator=generator).to(device)


def make_mask(padding: str, device: str) -> Tensor | None:
    """(BATCH, SEQLEN), 1 for tokens; `padding` is "none", "left" or "right"."""
    if padding == "none":
        return None
    columns = torch.arange(SEQLEN, device=device)
    if padding == "left":
        columns = columns.flip(0)
    lengths = torch.tensor(_LENGTHS, device=device)
    return (columns < lengths[:, None]).long()


def check(ref: Tensor, pt16: Tensor, out: Tensor, keep: Tensor | None = None) -> None:
    """Asserts the tolerance rule; `keep` selects the rows that count."""
    if keep is not None:
        ref, pt16, out = (x[keep.bool()] for x in (ref, pt16, out))
    error, bound = (out.float() - ref).abs().max().item(), tolerance(ref, pt16)
    assert error <= bound, f"error {error:.3e}, bound {bound:.3e}"
