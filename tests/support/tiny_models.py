"""Every model class of the installed transformers, and a small config for each: written from the
defaults of its config class, by the names of the fields."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

VOCABULARY = 96
SEQLEN = 20
WINDOW = 7
IMAGE, PATCH = 16, 4

# The first pattern that a field's name matches, in its whole length, tells its value.
_SMALL: dict[str, Any] = {
    # text
    r".*vocab_size(_per_layer_input)?": VOCABULARY,
    r"max_position_embeddings|max_.*positions|n_positions|n_ctx|max_seq_len.*": 64,
    r"sliding_window|local_attention|local_window_size|attention_window_size": WINDOW,
    r"use_sliding_window": True,
    r"max_window_layers": 0,
    # heads
    r"kv_lora_rank": 32,
    r"q_lora_rank": 32,
    r"qk_nope_head_dim|nope_head_dim": 16,
    r"qk_rope_head_dim|rope_head_dim": 8,
    r"qk_head_dim": 24,
    r"v_head_dim": 16,
    r".*head_dim|d_kv|attention_head_size|head_size": 16,
    r".*(num_key_value_heads|num_kv_heads|kv_heads)|.*num_query_groups": 2,
    r".*(num_attention_heads|attention_heads|n_heads?|num_heads|num_head)": 4,
    # layers
    r"num_kv_shared_layers": 0,
    r"hidden_size_per_layer_input": 16,
    r".*(num_hidden_layers|num_layers|_layers|n_layers?|num_blocks|n_blocks)|depth": 2,
    # experts: every token goes through each, because rounding may change which
    r"num_experts|num_local_experts|n_routed_experts|moe_num_experts": 2,
    r"num_experts_per_tok.*|top_k|moe_k|moe_topk|num_experts_per_token|router_top_k": 2,
    r"n_group|topk_group|num_expert_group.*": 1,
    r"num_mtp.*|num_nextn_predict_layers": 0,
    # widths
    r"(.*_)?(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|n_inner|mlp_dim|inner_dim)": 96,
    r"hidden_size|d_model|n_embd|embed_dim|embedding_size|dim|hidden_dim|.*_hidden_size": 64,
    r"projection_dim|out_hidden_size|text_embed_dim|proj_dim": 64,
    # images and sounds
    r".*image_size|img_size": IMAGE,
    r".*patch_size": PATCH,
    r"num_frames": 4,
    r"num_mel_bins|feature_size|num_mels": 16,
    # nothing random
    r".*dropout.*|.*drop_path.*|.*layerdrop.*|drop_rate|.*pdrop": 0.0,
}
_PATTERNS = [(re.compile(pattern), value) for pattern, value in _SMALL.items()]


def model_classes() -> Iterator[tuple[str, type[PreTrainedModel]]]:
    """The folder and the class of every model, those of one folder in the order of its file."""
    models = transformers.models.__path__[0]
    for folder in sorted(info.name for info in pkgutil.iter_modules([models]) if info.ispkg):
        for file in sorted(os.listdir(f"{models}/{folder}")):
            if not (file.startswith("modeling_") and file.endswith(".py")):
                continue
            try:
                module = importlib.import_module(f"transformers.models.{folder}.{file[:-3]}")
            except ImportError:  # needs a package that is not here
                continue
            for item in list(vars(module).values()):
                if (
                    inspect.isclass(item)
                    and issubclass(item, PreTrainedModel)
                    and item.__module__ == module.__name__
                ):
                    yield folder, item


_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MROPE = {"rope_parameters": _ROPE | {"mrope_section": [2, 3, 3]}}
_HALF_MROPE = {
    "rope_parameters": _ROPE | {"mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
}

# Codecs and encoders of sounds and images, whose channels are lists or powers of two.
_FEW_CHANNELS = {"conv_dim": [32] * 7}
_FEW_FILTERS = {"num_filters": 4, "depths": [1] * 7}
_WIDTHS = {"depths": [1] * 4, "embed_dim": [32, 64, 128, 256], "num_heads": [2, 4, 8, 16]}

# By the name of a config class.
_OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "Data2VecAudioConfig",
            "HubertConfig",
            "UniSpeechConfig",
            "UniSpeechSatConfig",
            "Wav2Vec2Config",
        ),
        _FEW_CHANNELS,
    ),
    "VibeVoiceAcousticTokenizerConfig": _FEW_FILTERS,
    "VibeVoiceAcousticTokenizerEncoderConfig": _FEW_FILTERS,
    "DacConfig": {"encoder_hidden_size": 8, "decoder_hidden_size": 64},
    "Emu3VQVAEConfig": {"base_channels": 32},
    "Florence2VisionConfig": _WIDTHS | {"num_groups": [2, 4, 8, 16]},
    "JanusVQVAEConfig": {"base_channels": 32},
    "Qwen2_5OmniBigVGANConfig": {"upsample_initial_channel": 64},
    "CohereCompassTextConfig": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE},
    },
    "DbrxAttentionConfig": {"clip_qkv": 8.0, "rope_theta": 10000.0},
    "DeepseekOcr2TextConfig": {
        "mlp_layer_types": ["dense", "sparse"],
        "n_routed_experts": 2,
        "num_experts_per_tok": 2,
    },
    "DeepseekV2Config": {"num_experts_per_tok": 2},
    "DiffusionGemmaTextConfig": {"num_experts": 2, "top_k_experts": 2, "moe_intermediate_size": 32},
    "Dots1Config": {"n_routed_experts": 2, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "Ernie4_5_VLMoeTextConfig": {"rope_parameters": _ROPE | {"mrope_section": [3, 3, 2]}},
    "EsmConfig": {"vocab_size": VOCABULARY, "pad_token_id": 1},
    "Gemma3nTextConfig": {"intermediate_size": [96, 96], "activation_sparsity_pattern": [0.0, 0.0]},
    "Gemma4AssistantConfig": {"hidden_size_per_layer_input": 0},
    "Glm4vTextConfig": _MROPE,
    "Glm4vMoeTextConfig": _HALF_MROPE,
    "GlmImageTextConfig": _MROPE,
    "GlmOcrTextConfig": _MROPE,
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 1]]},
    "HunYuanVLTextConfig": {"rope_parameters": _ROPE | {"mrope_section": [2, 2, 2, 2]}},
    "GraniteMoeHybridConfig": {"layer_types": ["mamba", "attention"]},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "LongcatFlashConfig": {"head_dim": 8, "zero_expert_num": 2, "moe_topk": 4},
    "LwDetrViTConfig": {"num_windows": 4},
    "MimiConfig": {"upsample_groups": 64, "num_filters": 8},
    "Mistral4Config": {"qk_rope_head_dim": 16, "qk_head_dim": 32},
    "MoonshineConfig": {
        "encoder_num_key_value_heads": 4,
        "decoder_num_key_value_heads": 4,
    },
    "MoonshineStreamingConfig": {"num_key_value_heads": 4},
    "NemotronConfig": {"num_key_value_heads": 2, "head_dim": 16},
    "NemotronHConfig": {"layers_block_type": ["mamba", "attention", "mlp"], "n_groups": 2},
    "PaddleOCRTextConfig": _MROPE,
    "Qwen2VLTextConfig": _MROPE,
    "Qwen2_5_VLTextConfig": _MROPE,
    "Qwen2_5OmniTextConfig": _MROPE,
    "Qwen2_5OmniTalkerConfig": _MROPE,
    "Qwen3_5TextConfig": {"layer_types": ["linear_attention", "full_attention"]},
    "Qwen3_5MoeTextConfig": {"layer_types": ["linear_attention", "full_attention"]},
    "Qwen3OmniMoeTalkerTextConfig": {"shared_expert_intermediate_size": 96},
    "ShieldGemma2Config": {"yes_token_index": 5, "no_token_index": 7},
    "WhisperConfig": {"num_mel_bins": 16, "max_source_positions": 64},
    "ZayaConfig": {"num_experts_per_tok": 1},
}


def tiny_config(config_class: type[PreTrainedConfig], keep_types: bool = True) -> PreTrainedConfig:
    """A config with the class's defaults where nothing is said of them above. keep_types: with one
    layer of each type that the defaults have; else the types are those of the class's own making.
    """
    default = config_class()
    parameters = inspect.signature(config_class.__init__).parameters
    fields = {name for name in (*parameters, *vars(default)) if not name.startswith("_")}
    values: dict[str, Any] = {}
    for name in sorted(fields):
        try:
            old = getattr(default, name, None)
        except Exception:  # differs from layer to layer
            continue
        if isinstance(old, PreTrainedConfig):
            values[name] = tiny_config(type(old), keep_types)
        elif isinstance(old, list) and re.fullmatch(_LAYER_TYPES, name):
            values[name] = _one_of_each(old) if keep_types else None
        elif name in ("rope_parameters", "rope_scaling") and isinstance(old, dict):
            values[name] = _tiny_rope(old)
        elif (small := _small(name, old)) is not _KEEP:
            values[name] = small
    types = values.get("layer_types") or values.get("layers_block_type")
    if types and len(types) != 2:
        values |= {n: len(types) for n in ("num_hidden_layers", "num_layers") if n in values}
    heads = [vars(default).get(f"num_{kind}_heads") for kind in ("key_value", "attention")]
    if heads[0] is not None and heads[0] == heads[1]:
        values["num_key_value_heads"] = values.get("num_attention_heads", 4)
    overrides = _OVERRIDES.get(config_class.__name__, {})
    values |= overrides
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    accepted = {n: v for n, v in values.items() if n in parameters or takes_all}
    config = config_class(**accepted)
    for name in overrides.keys() - accepted.keys():  # read by the model alone
        setattr(config, name, overrides[name])
    config._attn_implementation = "eager"
    return config


_LAYER_TYPES = r"layer_types|block_types|layers_block_type|mlp_layer_types|.*_layer_types"


def _one_of_each(types: list[Any]) -> list[Any]:
    distinct = list(dict.fromkeys(types))
    return distinct if len(distinct) > 1 else distinct * 2


def _tiny_rope(rope: dict[str, Any]) -> dict[str, Any]:
    return rope | {"mrope_section": [2, 3, 3]} if "mrope_section" in rope else rope


_KEEP = object()


def _small(name: str, old: Any) -> Any:
    if name.endswith("_token_id") and isinstance(old, int):
        return min(old, VOCABULARY - 1)
    for pattern, value in _PATTERNS:
        if pattern.fullmatch(name):
            if value is None:
                return None
            if isinstance(old, bool) != isinstance(value, bool):
                return _KEEP
            if old is None and "sliding" not in name and name != "head_dim":
                return _KEEP
            return _KEEP if isinstance(old, list | tuple | dict) else value
    return _KEEP


def tiny_inputs(model: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """What the model may take, two rows of each: the first that it runs with is meant."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(model.dtype)

    parameters = inspect.signature(model.forward).parameters
    main = model.main_input_name
    main = main if main in parameters else next(iter(parameters), "")
    ids = torch.randint(3, VOCABULARY // 2, (2, SEQLEN), generator=generator)
    others: dict[str, Any] = {"use_cache": False} if "use_cache" in parameters else {}
    if "decoder_input_ids" in parameters and main != "decoder_input_ids":
        others["decoder_input_ids"] = ids[:, :9]
    images, clip = normal(2, 3, IMAGE, IMAGE), normal(2, 4, 3, IMAGE, IMAGE)
    if grid := next((name for name in parameters if name in ("grid_thw", "image_grid_thw")), None):
        grids = torch.tensor([[1, 4, 4], [1, 4, 4]])
        extra = {"merge_sizes": torch.tensor([2, 2])} if "merge_sizes" in parameters else {}
        for channels in (192, 96, 48):
            yield {main: normal(32, channels), grid: grids, **extra}
    if main in ("input_ids", "text_ids", "decoder_input_ids"):
        yield {main: ids, **others}
        if "pixel_values" in parameters:
            yield {main: ids, "pixel_values": images, **others}
            yield {main: ids, "pixel_values": clip, **others}
        if "encoder_hidden_states" in parameters:
            yield {main: ids, "encoder_hidden_states": normal(2, 11, 64), **others}
        if "question_type_ids" in parameters or "qformer_input_ids" in parameters:
            yield {main: ids, "pixel_values": images, "qformer_input_ids": ids, **others}
        yield {main: torch.randint(3, 40, (2 * 4, SEQLEN), generator=generator), **others}
        if "inputs_embeds" in parameters:
            yield {"inputs_embeds": normal(2, SEQLEN, 64), **others}
    elif main == "pixel_values" or main == "pixel_values_videos" or main == "images":
        yield {main: images, **others}
        yield {main: clip, **others}
        yield {main: clip.flatten(0, 1), **others}
        yield {main: images, "input_ids": ids, **others}
        yield {main: normal(2, 4, 48), **others}
    elif main in ("input_values", "past_values", "audio_values"):
        yield {main: normal(2, 4000), **others}
        yield {main: normal(2, 1, 4000), **others}
        yield {main: normal(2, 64, 16), **others}
        yield {main: normal(2, 512, 1), **others}
        yield {main: normal(2, 1024, 16), **others}
    elif main == "input_features":
        for length in (128, 100):
            x = normal(2, 16, length)
            yield {main: x, **others}
            ones = torch.ones(2, length, dtype=torch.bool)
            yield {main: x, "input_features_mask": ones, **others}
            yield {main: x, "attention_mask": ones, **others}
        yield {main: normal(2, 64, 16), **others}
    else:
        yield {main: normal(2, SEQLEN, 64), **others}
        yield {main: normal(2, 64, SEQLEN), **others}
        yield {main: images, **others}
        yield {main: clip, **others}
