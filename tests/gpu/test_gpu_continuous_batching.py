"""`generate_batch` of transformers with attn_implementation="pyflash" on a GPU takes tokens of the
largest logits."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", minversion="5.23")

from compat.test_continuous_batching import (
    NEW,
    WITH_TABLES,
    calls,
    make_model,
    prompts_of,
    settings,
    test_tokens_are_those_of_pytorchs_attention,
)
from transformers import GenerationConfig

__all__ = ["calls", "test_tokens_are_those_of_pytorchs_attention"]

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    return "cuda"


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_tokens_have_the_largest_logits(name, graphs, calls):
    model = make_model(name).cuda()
    greedy = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=63)
    results = model.generate_batch(
        prompts_of(5, 33, 47, 1),
        generation_config=greedy,
        continuous_batching_config=settings(use_cuda_graph=graphs),
    )
    assert len(results) == 4
    for result in results.values():
        tokens = torch.tensor([result.prompt_ids + result.generated_tokens], device="cuda")
        with torch.no_grad():
            logits = model(tokens).logits[0, len(result.prompt_ids) - 1 : -1]
        taken = logits.gather(1, tokens[0, len(result.prompt_ids) :, None])[:, 0]
        torch.testing.assert_close(taken, logits.amax(1), atol=0.1, rtol=0.03)
    assert bool(calls) == (name in WITH_TABLES)
