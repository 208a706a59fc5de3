"""The SM90 backward on the emulated machine: gradients beside fp64, and nothing found."""

import pytest
import torch
from support.emulated_backward import DTYPES, Shape, exact_gradients, run

# d_head, and dtype, d_head, B_r, B_c, n_consumers, stages, overlap.
CONFIGS = {
    "FP16": (128, "DType::FP16, 128, 64, 128, 2, 3, true"),
    "BF16": (64, "DType::BF16, 64, 128, 128, 2, 2, false"),
}
LIMITS = {"FP16": 1e-3, "BF16": 8e-3}
SHAPES = {
    "whole_blocks": (1, 1, 1, 128, 128),
    "ragged": (1, 2, 1, 200, 150),
    "causal": (2, 2, 1, 197, 300),
    "rows_without_keys": (1, 2, 2, 300, 170),
    "window": (1, 1, 1, 290, 310),
}
WINDOWS = {
    "causal": {"window_right": 0},
    "rows_without_keys": {"window_right": 0},
    "window": {"window_left": 70, "window_right": 5},
}


@pytest.mark.parametrize("order", ["ascending", "random"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", CONFIGS)
def test_gradients(dtype: str, name: str, order: str) -> None:
    d_head, config = CONFIGS[dtype]
    shape = Shape(*SHAPES[name], d_head - 8 * (name == "window"), **WINDOWS.get(name, {}))
    torch.manual_seed(0)
    of_queries = (shape.batch, shape.seqlen_q, shape.heads, shape.d_head)
    of_keys = (shape.batch, shape.seqlen_k, shape.heads_kv, shape.d_head)
    q, k, v = (torch.randn(s).to(DTYPES[dtype]) for s in (of_queries, of_keys, of_keys))
    o, lse, grad_o, grad_lse, *exact = exact_gradients(q, k, v, shape)
    outputs = {f"d{n}": torch.full_like(t, torch.nan) for n, t in (("q", q), ("k", k), ("v", v))}
    inputs = {"q": q, "k": k, "v": v, "o": o, "grad_o": grad_o, "lse": lse, "grad_lse": grad_lse}
    findings = run(config, shape, order, **inputs, **outputs)
    assert findings == []
    for gradient, of_fp64 in zip(outputs.values(), exact, strict=True):
        error = (gradient.double() - of_fp64).norm() / of_fp64.norm()
        assert error < LIMITS[dtype]
