"""What pyflash does not do for models of transformers, in which words, and how it is registered."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

from support.llama import make_ids, make_mask, make_models
from transformers import DynamicCache, modeling_utils
from transformers.masking_utils import create_causal_mask

from pyflash.integrations import transformers as integration


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def call(attention_mask=None, **options):
    """The attention of a layer, of 5 queries and 9 keys."""
    module = SimpleNamespace(is_causal=True)
    q, k = half(2, 4, 5, 64), half(2, 2, 9, 64)
    return integration.attention_forward(module, q, k, k, attention_mask, **options)


# name -> (arguments, sentence)
REFUSED = {
    "a mask of rank 4": (
        {"attention_mask": half(2, 1, 5, 9)},
        "attention_mask has shape (2, 1, 5, 9): expected (batch, seqlen), 0 for padding; "
        "attn_implementation='sdpa' takes other masks",
    ),
    "a mask of more columns than keys": (
        {"attention_mask": half(2, 10)},
        "attention_mask has shape (2, 10): expected batch 2 and at most 9 columns, one for each "
        "key",
    ),
    "a mask of fewer columns than queries": (
        {"attention_mask": half(2, 4)},
        "attention_mask has 4 columns for 5 queries: expected one for each query at least",
    ),
    "a window over padding": (
        {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1, 1]] * 2), "sliding_window": 3},
        "attention_mask has padding between the tokens of a row: expected it before or behind "
        "them, because a sliding window counts tokens",
    ),
    "attention weights": (
        {"output_attentions": True},
        "output_attentions is True: expected False, because the weights are never in memory; "
        "attn_implementation='eager' returns them",
    ),
    "a bias": (
        {"position_bias": half(1, 4, 5, 9)},
        "position_bias is given: expected None, because pyflash has no biases of the scores; use "
        "another attn_implementation for this model",
    ),
    "half of the packed lengths": (
        {"cu_seq_lens_q": torch.tensor([0, 5, 10])},
        "expected cu_seq_lens_q and cu_seq_lens_k, or neither",
    ),
    "packed lengths and a mask": (
        {
            "cu_seq_lens_q": torch.tensor([0, 5, 10]),
            "cu_seq_lens_k": torch.tensor([0, 9, 18]),
            "attention_mask": torch.ones(2, 9, dtype=torch.bool),
        },
        "attention_mask and cu_seq_lens_q are given: expected one of them, because packed "
        "sequences have no padding",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_what_it_does_not_do(case):
    arguments, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=f"^pyflash: {re.escape(sentence)}$"):
        call(**arguments)


def test_dropout_is_drawn_in_training_only():
    model = make_models("llama_with_dropout", torch.float16, "cpu").pyflash
    ids = make_ids("cpu")
    whole = model(ids).logits
    assert torch.equal(model(ids).logits, whole)
    model.train()
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(model(ids).logits)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], whole)


def test_float32_is_refused():
    model = make_models("llama", torch.float16, "cpu").pyflash.float()
    with pytest.raises(ValueError, match="q is float32: expected float16 or bfloat16"):
        model(make_ids("cpu"))


@pytest.mark.parametrize("overlay", ["or_mask_function", "and_mask_function", "blocks"])
def test_masks_of_a_models_own_are_refused(overlay):
    """Masks of images whose tokens see each other, say: transformers asks the mask function."""
    config = make_models("llama", torch.float16, "cpu").pyflash.config
    options = {overlay: lambda batch, head, query, key: query >= key}
    if overlay == "blocks":
        options = {"block_sequence_ids": torch.tensor([[-1, 0, 0, -1, -1]])}
    with pytest.raises(ValueError, match="this model adds a mask of its own to the causal one"):
        create_causal_mask(config, half(1, 5, 8), None, None, **options)


def test_a_mask_without_the_tokens_in_the_cache_is_refused():
    model = make_models("llama", torch.float16, "cpu").pyflash
    ids, cache = make_ids("cpu"), DynamicCache()
    model(ids[:, :30], past_key_values=cache)
    with pytest.raises(ValueError, match="has 7 columns: expected 37, one for each token so far"):
        model(ids[:, 30:], attention_mask=make_mask("left", "cpu")[:, 30:], past_key_values=cache)


def run_python(code: str) -> str:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_nothing_but_registering_imports_transformers():
    code = """if True:
        import sys, pyflash
        pyflash.sdpa, pyflash.attention
        from pyflash.integrations import transformers
        assert not [name for name in sys.modules if name.split(".")[0] == "transformers"]
        sys.modules["transformers"] = None  # as if it were missing
        try:
            transformers.register()
        except ImportError as error:
            print(error)
    """
    assert run_python(code) == (
        "pyflash.integrations.transformers needs transformers >= 5.4: "
        "pip install -U 'transformers>=5.4'\n"
    )


def test_an_older_transformers_is_refused(monkeypatch):
    monkeypatch.setattr("transformers.__version__", "4.57.6")
    with pytest.raises(ImportError, match=r"needs transformers >= 5\.4: .* \(this is 4\.57\.6\)"):
        integration.register()


def test_other_implementations_are_loaded_as_before():
    """Registering leaves out the lookup of a kernel for "pyflash" only."""
    integration.register()
    with pytest.raises((ImportError, ValueError)):
        modeling_utils.lazy_import_flash_attention("not_a_flash_attention")
    assert modeling_utils.lazy_import_flash_attention("pyflash") is None


def test_a_list_of_implementations_without_sinks_is_respected():
    """transformers would replace pyflash by the first of them, with no more than a log line."""
    model = make_models("llama", torch.float16, "cpu").pyflash

    class Restricted(type(model)):
        _compatible_flash_implementations = ("vendor/sparse-attention",)

    with pytest.raises(ValueError, match="is compatible with vendor/sparse-attention only"):
        Restricted._from_config(model.config, attn_implementation="pyflash")
