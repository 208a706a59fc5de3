"""Models of transformers with attn_implementation="pyflash", beside PyTorch's attention and fp32.

tests/gpu/test_gpu_transformers.py runs the tests that take `device` on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers")

from support.llama import (
    BATCH,
    PADDING,
    SEQLEN,
    check,
    make_ids,
    make_mask,
    make_models,
)
from transformers import DynamicCache, StaticCache

from pyflash.integrations import packing as packing_module
from pyflash.integrations import transformers as integration
from pyflash.op.reference import tolerance

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
PADDINGS = pytest.mark.parametrize("padding", ["none", "left", "right"])
CACHES = pytest.mark.parametrize("cache", ["dynamic", "static"])


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other cost more than such small matrices take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_all(models, run):
    """`run` of each of the models, its logits without gradients."""
    with torch.no_grad():
        return [run(model) for model in (models.ref, models.pt16, models.pyflash)]


# Logits.


@DTYPES
@PADDINGS
@pytest.mark.parametrize("name", ["llama", "sliding_window", "capped", "sinks", "encoder"])
def test_logits(name, padding, dtype, device):
    models = make_models(name, dtype, device)
    ids, mask = make_ids(device), make_mask(padding, device)
    check(*run_all(models, lambda model: model(ids, attention_mask=mask)[0]), keep=mask)


def test_the_attention_of_pyflash_is_what_runs(monkeypatch, device):
    calls = []

    def counted(*arguments, **options):
        calls.append(options)
        return attention(*arguments, **options)

    attention = integration.attention
    monkeypatch.setattr(integration, "attention", counted)
    models = make_models("llama", torch.float16, device)
    models.pyflash(make_ids(device))
    assert [call["causal"] for call in calls] == [True, True]


def decode(model, ids, mask, cache, first=20):
    """Logits of all tokens: some at once, some more behind them, then one by one."""
    past = (
        DynamicCache(config=model.config)
        if cache == "dynamic"
        else StaticCache(config=model.config, max_cache_len=SEQLEN + 10)
    )
    logits = []
    for start, end in [(0, first), (first, first + 6), *((i, i + 1) for i in range(26, SEQLEN))]:
        logits.append(
            model(
                ids[:, start:end],
                attention_mask=None if mask is None else mask[:, :end],
                past_key_values=past,
            ).logits
        )
    return torch.cat(logits, 1)


@DTYPES
@CACHES
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", ["llama", "sliding_window", "capped", "sinks"])
def test_logits_with_a_cache(name, padding, cache, dtype, device):
    """A static cache is longer than what fills it, also where there is no mask to tell."""
    models = make_models(name, dtype, device)
    ids, mask = make_ids(device), make_mask(padding, device)
    check(*run_all(models, lambda model: decode(model, ids, mask, cache)), keep=mask)


@CACHES
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize(("name", "seed"), [("llama", 21), ("sliding_window", 19)])
def test_generates_the_same_tokens(name, seed, padding, cache, device):
    """Greedy, with weights and prompts whose best token leads by more than the logits differ: a
    token that differs is no tie."""
    models = make_models(name, torch.float16, device, seed)
    ids, mask = make_ids(device), make_mask(padding, device)
    ids = ids if mask is None else torch.where(mask.bool(), ids, PADDING)

    def generate(model):
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids) if mask is None else mask,
            max_new_tokens=32,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            cache_implementation=cache,
            disable_compile=True,
        )

    results = run_all(models, generate)
    assert torch.equal(results[2].sequences, results[1].sequences)
    ref, pt16, pyflash = (torch.stack(result.logits) for result in results)
    check(ref, pt16, pyflash)
    best, second = ref.topk(2).values.unbind(-1)
    assert (pyflash - pt16).abs().max() < (best - second).min()


# Gradients.


@DTYPES
@pytest.mark.parametrize("padding", ["none", "right"])
@pytest.mark.parametrize(("name", "n_weights"), [("llama", 21), ("sinks", 37), ("neox", 28)])
def test_a_training_steps_gradients(name, n_weights, padding, dtype, device):
    models = make_models(name, dtype, device)
    ids, mask = make_ids(device), make_mask(padding, device)
    labels = ids if mask is None else torch.where(mask.bool(), ids, -100)

    def gradients(model):
        model.train()
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        return {name: weight.grad for name, weight in model.named_parameters()}

    ref, pt16, pyflash = (gradients(m) for m in (models.ref, models.pt16, models.pyflash))
    assert len(ref) == n_weights
    for name in ref:
        if ref[name].numel() <= 2:  # a router's bias: pt16 has too few errors for a bound
            continue
        error = (pyflash[name] - ref[name]).abs().max().item()
        assert error <= tolerance(ref[name], pt16[name]), name


# Packed sequences.


@pytest.mark.parametrize("name", ["llama", "sliding_window"])
@pytest.mark.parametrize("told_by", ["position_ids", "cu_seq_lens", "both"])
def test_packed_sequences_do_not_see_each_other(told_by, name, device):
    models = make_models(name, torch.float16, device)
    lengths = (11, 1, 25)
    ids = make_ids(device, 1)
    position_ids = torch.cat([torch.arange(n, device=device) for n in lengths])[None]
    cu_seqlens = F.pad(torch.tensor(lengths, device=device).cumsum(0), (1, 0)).int()
    packed = {"position_ids": position_ids, "use_cache": False}
    told = packed | {
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": 25,
        "max_length_k": 25,
    }
    if told_by == "cu_seq_lens":  # a cache hides the positions
        told["use_cache"] = True
    with torch.no_grad():
        ref = [models.ref(x).logits for x in ids.split(lengths, dim=1)]
        pt16 = models.pt16(ids, **packed).logits
        out = models.pyflash(ids, **(packed if told_by == "position_ids" else told)).logits
    check(torch.cat(ref, 1), pt16, out)


def test_packed_rows_of_a_batch(device):
    models = make_models("llama", torch.float16, device)
    ids = make_ids(device)
    position_ids = torch.arange(SEQLEN, device=device).repeat(BATCH, 1)
    position_ids[1, 9:] -= 9
    position_ids[2, 30:] -= 30
    options = {"position_ids": position_ids, "use_cache": False}
    check(*run_all(models, lambda model: model(ids, **options).logits))


# torch.autocast, torch.compile.


def test_autocast(device):
    models = make_models("llama", torch.bfloat16, device)
    ids, mask = make_ids(device), make_mask("left", device)

    def run(model):
        autocast = torch.autocast(device, torch.bfloat16, enabled=model is not models.ref)
        with autocast:
            return model.float()(ids, attention_mask=mask).logits

    check(*run_all(models, run), keep=mask)


def compiled_llama(device):
    models = make_models("llama", torch.float16, device)
    torch.compiler.reset()
    compiled = torch.compile(models.pyflash, fullgraph=True, backend="aot_eager")
    return replace(models, pyflash=compiled)


def test_compiles(device):
    models, ids = compiled_llama(device), make_ids(device)
    check(*run_all(models, lambda model: model(ids).logits))


def test_compiles_with_padding(device):
    """In one graph, which serves masks that it was not compiled with."""
    models, ids = compiled_llama(device), make_ids(device)
    for padding in ("left", "right"):
        mask = make_mask(padding, device)
        logits = run_all(models, lambda model, seen=mask: model(ids, attention_mask=seen).logits)
        check(*logits, keep=mask)
    mask[0, -3] = 0
    mask[0, -2:] = 1
    if device == "cpu":  # an assertion of a GPU ends its context
        with torch.no_grad(), pytest.raises(RuntimeError, match="padding between the tokens"):
            models.pyflash(ids, attention_mask=mask)


def test_a_compiled_training_steps_gradients(device):
    """Those of the same model outside of a graph, whose tokens are packed."""
    models, ids = compiled_llama(device), make_ids(device)
    mask = make_mask("right", device)
    labels = torch.where(mask.bool(), ids, -100)
    gradients = []
    for model in (models.pyflash._orig_mod, models.pyflash):
        model.zero_grad()
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    for eager, compiled in zip(*gradients, strict=True):
        assert (compiled - eager).norm() <= 0.01 * eager.norm()


def test_a_mask_is_looked_at_once_in_a_forward(monkeypatch, device):
    count = []
    pack = packing_module._pack
    monkeypatch.setattr(packing_module, "_pack", lambda *x: count.append(None) or pack(*x))
    models = make_models("llama", torch.float16, device)
    ids, mask = make_ids(device), make_mask("left", device)
    for forwards in (1, 2):
        models.pyflash(ids, attention_mask=mask)
        assert len(count) == forwards
