"""`generate_batch` of transformers with attn_implementation="pyflash" gives the tokens of
`generate`, and goes the way that it says.

tests/gpu/test_gpu_continuous_batching.py runs the tests that take `device` on a GPU."""

from __future__ import annotations

import logging

import pytest
import torch

pytest.importorskip("transformers", minversion="5.23")

from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import continuous_api

from pyflash.integrations import continuous_batching as integration
from pyflash.integrations import transformers as pyflash_transformers

logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,  # large enough for attention to matter in the logits
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
BOTH = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 11}
CAPS = {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16, **BOTH}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 2, **BOTH}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE)),
    "narrow": (LlamaForCausalLM, LlamaConfig(**{**SHAPE, "head_dim": 12})),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**{**SHAPE, **CAPS})),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**{**SHAPE, **BOTH})),
    "gpt_oss": (GptOssForCausalLM, GptOssConfig(**{**SHAPE, **EXPERTS})),
}
# Without windows, and with heads that pages can hold.
WITH_TABLES = ("llama", "qwen3")
NEW = 9


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """The number of sequences of each call over a block table."""
    counted = []
    decode = pyflash_transformers.decode

    def counting(q, *args, **kwargs):
        counted.append(q.shape[2])
        return decode(q, *args, **kwargs)

    monkeypatch.setattr(pyflash_transformers, "decode", counting)
    return counted


def make_model(name: str, dtype: torch.dtype = torch.bfloat16, seed: int = 0):
    pyflash_transformers.register(continuous_batching=True)
    torch.manual_seed(seed)
    model_class, config = MODELS[name]
    model = model_class(config).to(dtype).eval()
    if name == "gpt_oss":  # zeros, as they are made, are no sinks that one would notice
        for layer in model.model.layers:
            torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    model.set_attn_implementation("pyflash")
    return model


def settings(**changed) -> ContinuousBatchingConfig:
    return ContinuousBatchingConfig(
        **{"page_size": 16, "num_blocks": 40, "max_batch_tokens": 128, **changed}
    )


def prompts_of(*lengths: int, shared: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    prefix = torch.randint(1, 64, (shared,), generator=generator).tolist()
    return [prefix + torch.randint(1, 64, (n,), generator=generator).tolist() for n in lengths]


def check(model, prompts, **changed) -> None:
    greedy = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=63)
    results = model.generate_batch(
        prompts, generation_config=greedy, continuous_batching_config=settings(**changed)
    )
    assert model.config._attn_implementation == "pyflash", "the manager gives it back"
    assert len(results) == len(prompts)
    found = sorted((result.prompt_ids, result.generated_tokens) for result in results.values())
    for prompt, tokens in found:
        expected = model.generate(torch.tensor([prompt]), generation_config=greedy)
        expected = expected[0, len(prompt) :].tolist()
        assert tokens == expected[: len(tokens)]
        assert len(tokens) == len(expected)
    assert [prompt for prompt, _ in found] == sorted(prompts)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("table", [True, False], ids=["table", "index"])
@pytest.mark.parametrize("tokens", [128, 24], ids=["whole", "chunked"])
def test_tokens_are_those_of_generate(name, table, tokens, calls):
    model = make_model(name)
    changed = {"max_batch_tokens": tokens, **({} if table else {"max_blocks_per_request": 0})}
    check(model, prompts_of(5, 33, 47, 1), **changed)
    assert bool(calls) == (table and name in WITH_TABLES)


# Weights whose best token leads by more than logits in float16 differ: one that differs is no tie.
LEADING = {"llama": 54, "qwen3": 29, "gemma3": 44, "gpt_oss": 5}


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", LEADING)
def test_tokens_are_those_of_pytorchs_attention(name, graphs, device):
    model = make_model(name, torch.float16, LEADING[name]).to(device)
    if name == "gpt_oss":  # the experts that it takes by default wait for the GPU, in float16
        model.set_experts_implementation("batched_mm")
    greedy = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=63)
    prompts = prompts_of(5, 33, 47, 1)
    config = settings(use_cuda_graph=graphs and device != "cpu")
    results = model.generate_batch(
        prompts, generation_config=greedy, continuous_batching_config=config
    )
    assert [x.error for x in results.values()] == [None] * len(prompts)
    found = {tuple(x.prompt_ids): x.generated_tokens for x in results.values()}
    leads = []
    for implementation in ("pyflash", "eager"):
        model.set_attn_implementation(implementation)
        for prompt in prompts:
            ids = torch.tensor([prompt], device=device)
            expected = model.generate(
                ids, generation_config=greedy, output_logits=True, return_dict_in_generate=True
            )
            assert found[tuple(prompt)] == expected.sequences[0, len(prompt) :].tolist()
            best, second = torch.stack(expected.logits).topk(2).values.unbind(-1)
            leads.append((best - second).min().item())
    assert min(leads) > 0.03


@pytest.mark.parametrize("name", MODELS)
def test_prefixes_are_shared(name):
    """More prompts of one prefix than a step takes, so that the later find its blocks."""
    check(make_model(name), prompts_of(3, 9, 1, 20, 6, 3, shared=40), max_batch_tokens=64)


@pytest.mark.parametrize("name", WITH_TABLES)
def test_more_requests_than_the_cache_holds(name, calls):
    check(make_model(name), prompts_of(40, 30, 20, 40, 30), num_blocks=8)
    assert calls


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_forks(name):
    """Two answers to each prompt share its blocks. Sampling at a temperature of almost 0 takes any
    of the largest logits, which may be several in bfloat16."""
    model = make_model(name)
    twice = GenerationConfig(
        max_new_tokens=NEW,
        do_sample=True,
        temperature=1e-4,
        pad_token_id=0,
        num_return_sequences=2,
    )
    results = model.generate_batch(
        prompts_of(20, 33), generation_config=twice, continuous_batching_config=settings()
    )
    assert len(results) == 4
    for result in results.values():
        tokens = torch.tensor([result.prompt_ids + result.generated_tokens])
        with torch.no_grad():
            logits = model(tokens).logits[0, len(result.prompt_ids) - 1 : -1]
        taken = logits.gather(1, tokens[0, len(result.prompt_ids) :, None])[:, 0]
        torch.testing.assert_close(taken, logits.amax(1), atol=0.05, rtol=0.02)


def test_slots_are_found_once_in_a_step(monkeypatch, calls):
    """By the first of its layers, of which there are two."""
    found = []
    slots_of = integration.slots_of
    monkeypatch.setattr(integration, "slots_of", lambda *x: found.append(1) or slots_of(*x))
    check(make_model("llama"), prompts_of(5, 33, 47, 1))
    assert len(calls) == 2 * len(found) > 0


def test_a_step_is_that_of_its_pass():
    """What an earlier pass found is of other lengths, or of memory that a graph must not keep."""
    starts = torch.tensor([0, 5, 9], dtype=torch.int32)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    step = integration._step_of(starts, table, 4, 3)
    assert step.lengths.tolist() == [5, 4]
    assert step.slots.tolist() == [4, 11]
    assert integration._step_of(starts, table, 4, 4) is step
    assert integration._step_of(starts, table, 4, 5) is step
    assert integration._step_of(starts, table, 4, 5) is not step, "the same layer again"
    step = integration._step_of(starts, table, 4, 3)
    assert integration._step_of(starts, table.clone(), 4, 4) is not step, "another group of layers"
    step = integration._step_of(starts, table, 4, 3)
    starts[2] += 1
    assert integration._step_of(starts, table, 4, 4).lengths.tolist() == [5, 5]


def test_a_graph_makes_its_own_step(monkeypatch):
    """It is recorded after a step with the same tensors, whose lengths it must not keep."""
    starts = torch.tensor([0, 5, 9], dtype=torch.int32)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    step = integration._step_of(starts, table, 4, 0)
    monkeypatch.setattr(integration, "_is_captured", lambda x: True)
    captured = integration._step_of(starts, table, 4, 1)
    assert captured is not step
    assert integration._step_of(starts, table, 4, 2) is captured
    again = integration._step_of(starts, table, 4, 0)
    assert again is not captured, "another graph"
    monkeypatch.undo()
    assert integration._step_of(starts, table, 4, 1) is not again


def test_rows_behind_the_last_sequence_have_room(monkeypatch):
    """Where a graph is recorded, the batch is padded to more rows than the bound of the lengths
    times the number of sequences."""
    told = []

    def attention_varlen(q, k, v, *packing, **options):
        told.extend(packing[2:])
        return q

    monkeypatch.setattr(pyflash_transformers, "attention_varlen", attention_varlen)
    q, k = torch.zeros(1, 4, 64, 64).half(), torch.zeros(1, 4, 335, 64).half()
    starts = torch.tensor([0, 3, 7, 7], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
    sizes = {"max_length_q": 4, "max_length_k": 100}
    pyflash_transformers.attention_forward(torch.nn.Module(), q, k, k, None, **lengths, **sizes)
    assert told == [22, 112]


def test_without_register_of_continuous_batching_a_cache_is_refused():
    q = torch.zeros(1, 4, 5, 64).half()
    with pytest.raises(ValueError, match=r"cache is given: .* register\(continuous_batching=True"):
        pyflash_transformers.attention_forward(torch.nn.Module(), q, q, q, None, cache=object())


def test_a_second_register_changes_nothing():
    pyflash_transformers.register(continuous_batching=True)
    before = continuous_api.ContinuousBatchingManager.switch_to_cb_friendly_attn
    pyflash_transformers.register(continuous_batching=True)
    pyflash_transformers.register()
    assert continuous_api.ContinuousBatchingManager.switch_to_cb_friendly_attn is before


def test_an_older_transformers_is_refused():
    with pytest.raises(ImportError, match=r"needs transformers 5\.23.*this is 5\.9"):
        integration.allow_continuous_batching((5, 9))


def test_a_transformers_without_these_functions_is_refused(monkeypatch):
    monkeypatch.delattr(continuous_api.ContinuousBatchingManager, "switch_to_cb_friendly_attn")
    with pytest.raises(ImportError, match=r"with the functions of that version: .*switch_to_cb"):
        integration.allow_continuous_batching((5, 23))
