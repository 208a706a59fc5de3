"""The bench with a variant: FlexAttention's functions of it, its pairs, and records."""

import json

import pytest
import torch
from typer.testing import CliRunner

from pyflash.bench.packages import flex_with
from pyflash.bench.variants import Given
from pyflash.cli import app
from pyflash.config import DType
from pyflash.op.selection import Problem
from pyflash.ui.variants import AskedVariant
from pyflash.variant.evaluate import evaluate
from pyflash.variant.library import names

PROBLEM = Problem(
    batch=2, heads_q=4, heads_kv=2, seqlen_q=40, seqlen_k=56, d_head=16, dtype=DType.FP16,
    device="cpu",
)  # fmt: skip


def given_of(text, problem=PROBLEM):
    return Given.of(AskedVariant.of(text, None), problem)


@pytest.mark.parametrize("name", names())
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_every_named_variant(name):
    given, generator = given_of(name), torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, n, heads, 16, generator=generator).half()
        for n, heads in ((40, 4), (56, 2), (56, 2))
    )
    out = flex_with(PROBLEM, given)(q, k, v)
    expected = given.expect(q, k, v)
    assert expected.error(out) <= 2 * expected.bound


@pytest.mark.parametrize("name", names())
def test_the_pairs_that_a_mask_shows_are_counted(name, monkeypatch):
    monkeypatch.setattr("pyflash.bench.variants._MOST_PAIRS", 1000)  # several parts
    given = given_of(name)
    places = [torch.arange(n, dtype=torch.int32) for n in (2, 4, 40, 56)]
    grid = torch.meshgrid(*places, indexing="ij")
    at = {name: x.numpy().ravel() for name, x in zip("bhqk", grid, strict=True)}
    for name, n in {"q_len": 40, "k_len": 56, "q0": 0, "k0": 0}.items():
        at[name] = torch.full_like(grid[0], n).numpy().ravel()
    at |= {n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in given.tensors.items()}
    at["s"] = torch.zeros(grid[0].numel()).numpy()
    _, shown = evaluate(given.variant, at)
    assert given.pairs(PROBLEM) == int(torch.as_tensor(shown).expand(grid[0].numel()).sum())


def test_records_name_the_variant_and_are_found_by_it(tmp_path):
    path, line = tmp_path / "mine.txt", "mine(n: i32): s where abs(k - q) < n"
    path.write_text(f"# of this test\n{line}\n")
    out = tmp_path / "records.jsonl"
    size = ["--seqlen", "48", "--tokens", "48", "--d-head", "16", "--samples", "2"]
    size += ["--device", "cpu", "--backend", "none"]
    measured = CliRunner().invoke(
        app, ["bench", "--variant", str(path), "--value", "n=4", *size, "--out", str(out)]
    )
    assert measured.exit_code == 0, measured.output
    (record,) = (json.loads(text) for text in out.read_text().splitlines())
    assert record["variant_text"] == line
    key = AskedVariant.of(line, None).name
    assert record["problem"]["variant"] == key
    assert key in measured.stdout
    pairs = 16 * sum(abs(i - j) < 4 for i in range(48) for j in range(48))
    flops = record["tflops"] * record["timing"]["seconds"] * 1e12
    assert flops == pytest.approx(4 * 16 * pairs, rel=1e-6)
    for words, status in (([line], 0), (["causal"], 1)):
        read = CliRunner().invoke(app, ["bench", "--read", str(out), "--variant", *words])
        assert read.exit_code == status, read.output
