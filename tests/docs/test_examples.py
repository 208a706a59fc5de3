"""Every example runs as its first lines say, on the CPU and at small sizes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from support import notebooks
from support.markdown import ON_THE_CPU, ROOT

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
LONGEST = {"serve.py": 600, "serve_compare.py": 160}  # a whole engine, and another attention for it
TESTED_IN = ("test_examples.py", "test_serve.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(name: str, *arguments: str, launcher: tuple[str, ...] = ()) -> str:
    ran = subprocess.run(
        [sys.executable, *launcher, f"examples/{name}", *arguments],
        cwd=ROOT,
        env={**os.environ, **ON_THE_CPU, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_short_and_say_how_they_run(name):
    text = (ROOT / "examples" / name).read_text()
    assert len(text.splitlines()) <= LONGEST.get(name, 120)
    assert f"examples/{name}" in text.partition('"""')[2].partition('"""')[0]
    tests = "".join((ROOT / "tests/docs" / file).read_text() for file in TESTED_IN)
    assert f'run("{name}"' in tests or f'"examples/{name}"' in tests


def test_first_config(tmp_path):
    said = run("first_config.py", "--out", str(tmp_path))
    passes = re.findall(r"K is read in (\d) times", said)
    assert passes == ["8", "1"]
    assert "more than the 232448" in said
    assert "<svg" in (tmp_path / "K.svg").read_text()
    assert "K in shared memory" in (tmp_path / "config.html").read_text()


def test_serve_model():
    assert "8b: 8030.0 million weights" in run("serve_model.py")


def test_tune_a_shape():
    said = run("tune_a_shape.py", "bf16,batch=1,heads=4,seqlen=512,d_head=128")
    assert "nothing is measured" in said
    ratios = [float(text) for text in re.findall(r"^  (\d\.\d\d)  \(BF16, 128, ", said, re.M)]
    assert len(ratios) == 5
    assert ratios == sorted(ratios)


def test_huggingface_generate():
    said = run("huggingface_generate.py", "--prompt", "16", "--tokens", "4")
    assert "4 tokens for each of 2 prompts" in said
    # Rounded otherwise, so PyTorch's attention did not run in both.
    assert 0 < float(re.search(r"by ([\d.]+)%", said)[1]) < 2


def test_inside_a_kernel(monkeypatch):
    """The cells of the notebook run, and show what is kept in it: up to times and a picture's
    details."""
    monkeypatch.chdir(ROOT)
    kept = notebooks.read(ROOT / "examples/inside_a_kernel.ipynb")
    shown = notebooks.executed(kept)
    kinds = []
    for before, after in zip(kept["cells"], shown["cells"], strict=True):
        if before["cell_type"] == "code":
            assert [notebooks.said(x) for x in before["outputs"]] == [
                notebooks.said(x) for x in after["outputs"]
            ]
            kinds += [kind for x in after["outputs"] for kind in x.get("data", ())]
    assert kinds.count("text/html") == 3
    assert kinds.count("image/svg+xml") == 1


def test_train():
    said = run("train.py", "--steps", "12")
    first, *_, last = re.findall(r"(\d\.\d+) +(\d\.\d+)$", said, re.M)
    assert all(
        float(after) < 0.8 * float(before) for before, after in zip(first, last, strict=True)
    )


def test_long_context():
    said = run("long_context.py", "--seqlen", "128", launcher=TORCHRUN)
    assert "128 tokens on 2 ranks" in said


def test_variant_alibi():
    said = run("variant_alibi.py", "--seqlen", "192")
    assert "'none': 4" in said
    errors = [float(text) for text in re.findall(r"max \|error\| ([\d.e+-]+)$", said, re.M)]
    assert len(errors) == 3
    assert max(errors) < 0.01


def test_compare_with_cutlass_profiler():
    said = run("compare_with_cutlass_profiler.py")
    assert "skipped: no GPU to measure on" in said
