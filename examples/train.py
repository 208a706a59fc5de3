"""A small decoder learns the bytes of this file, with pyflash and with PyTorch's attention.

    python examples/train.py [--steps 60]

Both models start with the same weights and see the same batches, so their losses fall together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pyflash

WIDTH, HEADS, SEQLEN, BATCH = 128, 4, 64, 8
Attention = Callable[..., Tensor]


class Layer(nn.Module):
    def __init__(self, attend: Attention) -> None:
        super().__init__()
        self.attend = attend
        self.norm, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = qkv.transpose(1, 3).unbind(2)  # (batch, heads, seqlen, d_head)
        out = self.attend(q, k, v, is_causal=True)
        x = x + self.o(out.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm_mlp(x))


class Decoder(nn.Module):
    def __init__(self, attend: Attention) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(SEQLEN, WIDTH)
        self.layers = nn.Sequential(Layer(attend), Layer(attend))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.bytes(tokens) + self.positions(places)))


def train(attend: Attention, steps: int, device: str) -> list[float]:
    """The loss of each step, per byte."""
    torch.manual_seed(0)
    model = Decoder(attend).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.tensor(list(Path(__file__).read_bytes()))
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - SEQLEN - 1, (BATCH,))
        window = torch.stack([text[i : i + SEQLEN + 1] for i in starts.tolist()]).to(device)
        with torch.autocast(device, torch.bfloat16):
            logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours = train(pyflash.sdpa, steps, device)
    theirs = train(F.scaled_dot_product_attention, steps, device)
    print("step  pyflash  PyTorch")
    for i in range(0, steps, max(1, steps // 10)):
        print(f"{i:4}  {ours[i]:7.3f}  {theirs[i]:7.3f}")
    print(f"last  {ours[-1]:7.3f}  {theirs[-1]:7.3f}")
    assert ours[-1] < 0.8 * ours[0]
    assert abs(ours[-1] - theirs[-1]) < 0.1


if __name__ == "__main__":
    main()
