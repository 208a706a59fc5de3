"""A model of two layers on a sequence that is spread over GPUs, forward and backward.

    torchrun --nproc-per-node 2 examples/long_context.py

runs on two GPUs, or without any on two processes of the CPU. Each rank holds its rows of the
sequence, everything but attention works on rows alone, and attention takes the process group. At
the end the loss and the gradients are compared with those of one process.
"""

from __future__ import annotations

import argparse
import os
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

import pyflash
from pyflash import distributed

WIDTH, HEADS, HEADS_KV, D_HEAD, VOCABULARY = 256, 8, 2, 64, 512


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q = nn.Linear(WIDTH, HEADS * D_HEAD, bias=False)
        self.k = nn.Linear(WIDTH, HEADS_KV * D_HEAD, bias=False)
        self.v = nn.Linear(WIDTH, HEADS_KV * D_HEAD, bias=False)
        self.o = nn.Linear(HEADS * D_HEAD, WIDTH, bias=False)
        widen, narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(widen, nn.GELU(), narrow)

    def forward(self, x: Tensor, positions: Tensor, attend) -> Tensor:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (-1, D_HEAD)) for f in (self.q, self.k, self.v))
        q, k = rotated(q, positions), rotated(k, positions)
        q, k, v = (x.bfloat16() for x in (q, k, v))
        x = x + self.o(attend(q, k, v, causal=True).flatten(-2).float())
        return x + self.mlp(self.norm_mlp(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, attend) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, positions, attend)
        return self.head(x)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embeddings: of the rows' places in the whole sequence."""
    frequencies = 10000 ** -torch.linspace(0, 1, D_HEAD // 2, device=x.device)
    angles = (positions[:, None] * frequencies)[:, None]  # (rows, 1, d_head / 2)
    (a, b), cos, sin = x.chunk(2, dim=-1), angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def train_step(model: Model, tokens: Tensor, labels: Tensor, positions: Tensor, attend) -> Tensor:
    """The sum of the losses of these rows; leaves gradients."""
    logits = model(tokens, positions, attend)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    loss.backward()
    return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seqlen", type=int, help="default: 65536, on the CPU 1024")
    parser.add_argument("--method", default="auto", choices=("auto", "ring", "all_to_all"))
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    seqlen = arguments.seqlen or (65536 if device.type == "cuda" else 1024)

    torch.manual_seed(0)
    model = Model().to(device)
    tokens, labels = torch.randint(VOCABULARY, (2, 1, seqlen), device=device)
    # This rank's rows, and their places in the sequence.
    positions = distributed.positions(seqlen, device=device)
    mine = (distributed.shard(tokens), distributed.shard(labels), positions)
    loss = train_step(model, *mine, partial(distributed.attention, method=arguments.method))
    dist.all_reduce(loss)  # each rank has the loss and the gradients of its rows: they add up
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    for gradient in gradients.values():
        dist.all_reduce(gradient)

    if dist.get_rank() == 0:
        model.zero_grad()
        places = torch.arange(seqlen, device=device)
        expected = train_step(model, tokens, labels, places, pyflash.attention)
        worst = max(
            ((gradients[name] - p.grad).norm() / p.grad.norm()).item()
            for name, p in model.named_parameters()
        )
        print(f"{seqlen} tokens on {dist.get_world_size()} ranks of {device.type}")
        print(f"loss per token {loss.item() / seqlen:.6f}, of one process {expected / seqlen:.6f}")
        print(f"gradients differ by {worst:.2%} at most (relative norm)")
        assert abs(loss / expected - 1) < 1e-3
        assert worst < 0.03
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
