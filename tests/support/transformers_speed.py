"""Tokens a second of a small Llama with random weights, by attention of transformers: pyflash
beside sdpa and eager, in turns.

    PYTHONPATH=.:tests python -m support.transformers_speed [--requests 32] [--graphs auto]

By continuous batching, `generate_batch`, where pyflash knows the transformers that is installed,
else, or with --padded, by `generate` of padded batches. Tokens are checked first. Managers are made
and warm before a turn is timed. Ends with status 1 where pyflash is not the fastest.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch
import transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from pyflash.integrations import transformers as pyflash_transformers

SHAPE = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "initializer_range": 0.05,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
TINY = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
PAGE = 64
TOLERANCE = 2.0  # how much further off than sdpa's own tokens

Prompts = list[list[int]]
Generate = Callable[[Prompts], tuple[Prompts, float]]  # and the seconds that it took
GRAPHS = {"no": False, "yes": True, "auto": None}  # auto: as transformers chooses


def make_model(shape: dict, device: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16).eval()


def make_prompts(n: int, longest: int, n_words: int) -> Prompts:
    rng = random.Random(0)
    lengths = [rng.randint(max(1, longest // 8), longest) for _ in range(n)]
    return [[rng.randrange(1, n_words) for _ in range(length)] for length in lengths]


def by_batches(
    model: LlamaForCausalLM, config: GenerationConfig, asked: argparse.Namespace
) -> Generate:
    """Continuous batching, in a cache that holds all; results in the order of the prompts. The
    manager lives until the model forgets it. Seconds are those from the first request to the last
    token: managers wait before they return.
    """
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    pages = (asked.longest + asked.new) // PAGE + 2
    settings = {
        "use_cuda_graph": GRAPHS[asked.graphs],
        "auto_switch_to_flash": False,
        "allow_block_sharing": False,
        "page_size": PAGE,
        "num_blocks": asked.requests * pages,
        "max_blocks_per_request": pages,
        "max_requests_per_batch": asked.requests,
        "max_batch_tokens": 2048,
    }

    def generate(prompts: Prompts) -> tuple[Prompts, float]:
        results = model.generate_batch(
            prompts,
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(**settings),
            persistent_manager=True,
            record_timestamps=True,
        ).values()
        of_prompt = {tuple(x.prompt_ids): x.generated_tokens for x in results}
        seconds = max(x.timestamps[-1] for x in results) - min(x.created_time for x in results)
        return [of_prompt[tuple(prompt)] for prompt in prompts], seconds

    return generate


def forget_manager(model: LlamaForCausalLM) -> None:
    if getattr(model, "_cached_continuous_batching_manager", None) is not None:
        model.destroy_cached_continuous_batching_manager()


def by_padding(model: LlamaForCausalLM, config: GenerationConfig) -> Generate:
    def generate(prompts: Prompts) -> tuple[Prompts, float]:
        begin = time.perf_counter()
        longest = max(map(len, prompts))
        rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        ids = torch.tensor(rows, device=model.device)
        found = model.generate(ids, attention_mask=(ids > 0).long(), generation_config=config)
        return found[:, longest:].tolist(), time.perf_counter() - begin

    return generate


def how_far_off(model: LlamaForCausalLM, prompts: Prompts, found: Prompts, n_new: int) -> float:
    """How far below the largest logit of sdpa, behind the tokens before it, that of a token is."""
    most = 0.0
    forget_manager(model)
    model.set_attn_implementation("sdpa")
    for prompt, new in zip(prompts, found, strict=False):
        assert len(new) == n_new, f"{len(new)} tokens, expected {n_new}"
        ids = torch.tensor([prompt + new], device=model.device)
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
        taken = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
        most = max(most, (logits.amax(1) - taken).max().item())
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--longest", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", default="sdpa,eager", help="attentions of transformers")
    parser.add_argument("--graphs", choices=GRAPHS, default="no", help="CUDA graphs")
    parser.add_argument("--padded", action="store_true", help="`generate` of padded batches")
    parser.add_argument("--tiny", action="store_true", help="a model for the CPU")
    asked = parser.parse_args()
    attentions = ("pyflash", *asked.beside.split(","))
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    is_continuous = not asked.padded
    try:
        pyflash_transformers.register(continuous_batching=is_continuous)
    except ImportError as error:
        print(error)
        pyflash_transformers.register()
        is_continuous = False
    way = "generate_batch" if is_continuous else "generate"
    shape = {**SHAPE, **(TINY if asked.tiny else {})}
    model = make_model(shape, device)
    config = GenerationConfig(max_new_tokens=asked.new, do_sample=False, pad_token_id=0)
    generate = by_batches(model, config, asked) if is_continuous else by_padding(model, config)
    of_one = GenerationConfig(max_new_tokens=1, do_sample=False, pad_token_id=0)
    generate_one = by_padding(model, of_one)
    prompts = make_prompts(asked.requests, asked.longest, shape["vocab_size"])
    print(
        f"transformers {transformers.__version__}, torch {torch.__version__}, {way}, "
        f"{len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens, "
        f"{asked.new} new ones each, graphs: {asked.graphs}"
    )
    n_checked = min(4, len(prompts))
    off, tokens = {}, {}
    for name in attentions:
        model.set_attn_implementation(name)
        tokens[name], _ = generate(prompts)
        off[name] = how_far_off(model, prompts, tokens[name][:n_checked], asked.new)
    first = attentions[1]
    equal = {name: sum(map(list.__eq__, tokens[first], tokens[name])) for name in attentions}
    print(f"answers of {len(prompts)} with the same tokens as those of {first}:", equal)
    print("logits of tokens below sdpa's largest:", {name: round(x, 3) for name, x in off.items()})
    assert off["pyflash"] <= TOLERANCE * max(1 / 16, *(off[name] for name in attentions[1:]))
    rates: dict[str, list[float]] = {name: [] for name in attentions}
    for _ in range(asked.rounds):
        for name in attentions:
            model.set_attn_implementation(name)
            generate([prompt[::-1] for prompt in prompts[:2]])
            found, seconds = generate(prompts)
            rates[name].append(sum(map(len, found)) / seconds)
            first = (
                "" if is_continuous else f", {1e3 * generate_one(prompts)[1]:.1f} ms to the first"
            )
            print(f"{name:8s} {1e3 * seconds:9.1f} ms{first}", flush=True)
            forget_manager(model)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        ratio = medians["pyflash"] / rate
        print(f"{name:8s} {rate:9.0f} tokens/s   pyflash over it {ratio:.2f}", flush=True)
    sys.exit(max(medians, key=medians.__getitem__) != "pyflash")


if __name__ == "__main__":
    with torch.no_grad():
        main()
