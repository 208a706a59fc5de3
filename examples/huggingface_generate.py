"""A model of Hugging Face transformers generates with pyflash's attention.

    python examples/huggingface_generate.py

The model is a small Llama with random weights, so nothing is downloaded; a published one takes
`from_pretrained(name, attn_implementation="pyflash")`. Its logits are compared with those of
PyTorch's attention.
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import pyflash.integrations.transformers

SHAPE = {
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.1,
}


def make_model(attention: str, device: str) -> LlamaForCausalLM:
    """The same weights for the same seed, whichever attention it has."""
    torch.manual_seed(0)
    # NOTE: a config of its own: a model writes the attention that it has into it.
    config = LlamaConfig(**SHAPE)
    model = LlamaForCausalLM._from_config(
        config, attn_implementation=attention, dtype=torch.bfloat16
    )
    return model.to(device).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=16, help="tokens to generate")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pyflash.integrations.transformers.register()

    ids = torch.randint(1, SHAPE["vocab_size"], (2, arguments.prompt), device=device)
    ours, theirs = make_model("pyflash", device), make_model("sdpa", device)
    with torch.inference_mode():
        generated = ours.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=arguments.tokens,
            do_sample=False,
        )
        # NOTE: logits, not tokens: with random weights two of them are often as likely.
        logits, expected = ours(generated).logits.float(), theirs(generated).logits.float()
    difference = ((logits - expected).norm() / expected.norm()).item()
    print(f"{generated.shape[1] - arguments.prompt} tokens for each of {len(ids)} prompts")
    print(generated[:, arguments.prompt :].tolist())
    print(f"logits differ from those of PyTorch's attention by {difference:.2%} (relative norm)")
    assert difference < 0.02


if __name__ == "__main__":
    main()
