"""The model of serve.py: a Llama with random weights, whose attention its caller has.

python examples/serve_model.py    # its shapes, and how many weights each has
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Shape(NamedTuple):
    layers: int
    d_model: int
    heads: int
    heads_kv: int
    d_head: int
    d_ff: int
    vocabulary: int
    context: int


SHAPES = {
    "tiny": Shape(2, 64, 4, 2, 16, 128, 97, 512),
    "8b": Shape(32, 4096, 32, 8, 128, 14336, 128256, 16384),
}


class Model:
    """A Llama with random weights. attend(layer, q, k, v) is its attention, of all rows at once."""

    def __init__(self, shape: Shape, device: torch.device, seed: int = 0):
        self.shape, self.device = shape, device
        on_gpu = device.type == "cuda"
        self.dtype = torch.bfloat16 if on_gpu else torch.float32
        self.attention_dtype = torch.bfloat16 if on_gpu else torch.float16
        generator = torch.Generator(device).manual_seed(seed)

        def weights(*size: int) -> Tensor:
            x = torch.empty(size, dtype=self.dtype, device=device)
            return x.normal_(0, size[0] ** -0.5, generator=generator)

        d, n_qkv = shape.d_model, (shape.heads + 2 * shape.heads_kv) * shape.d_head
        self.embedding = weights(shape.vocabulary, d) * shape.vocabulary**0.5
        sizes = {"qkv": (d, n_qkv), "o": (shape.heads * shape.d_head, d)}
        sizes |= {"gate_up": (d, 2 * shape.d_ff), "down": (shape.d_ff, d)}
        self.layers = [
            {name: weights(*size) for name, size in sizes.items()} for _ in range(shape.layers)
        ]
        self.unembedding = weights(d, shape.vocabulary)
        frequencies = 5e5 ** -(torch.arange(0, shape.d_head, 2, device=device) / shape.d_head)
        angles = torch.arange(shape.context, device=device)[:, None] * frequencies
        self.rotations = torch.cat([angles.cos(), angles.sin()], -1).to(self.dtype)

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Any, rows: Any = None) -> Tensor:
        """The token that follows each of the rows, or each of those asked for."""
        shape = self.shape
        cos, sin = self.rotations[positions][:, None].chunk(2, -1)
        x = self.embedding[tokens]
        for i, layer in enumerate(self.layers):
            qkv = (_norm(x) @ layer["qkv"]).unflatten(-1, (-1, shape.d_head))
            q, k, v = qkv.split([shape.heads, shape.heads_kv, shape.heads_kv], 1)
            q, k = (_rotated(part, cos, sin) for part in (q, k))
            q, k, v = (part.to(self.attention_dtype).contiguous() for part in (q, k, v))
            x = x + attend(i, q, k, v).flatten(1).to(self.dtype) @ layer["o"]
            gate, up = (_norm(x) @ layer["gate_up"]).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ layer["down"]
        return _norm(x if rows is None else x[rows]) @ self.unembedding


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def main() -> None:
    for name, shape in SHAPES.items():
        of_layer = shape.d_model * (2 * shape.heads + 2 * shape.heads_kv) * shape.d_head
        of_layer += 3 * shape.d_model * shape.d_ff
        n = shape.layers * of_layer + 2 * shape.vocabulary * shape.d_model
        print(f"{name}: {n / 1e6:.1f} million weights, {shape}")


if __name__ == "__main__":
    main()
