"""Which config of op backward computes gradients, and what is said of it; in a process of its own,
whose map has rows of the op."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_library import build_fake_library
from support.headers import ROOT

ANY = dict(  # noqa: C408
    dtype=15, packed=False, batch=2, heads=4, heads_kv=2, seqlen_q=200, seqlen_k=300, d_head=128
)
PROGRAM = """
import json, sys
from types import SimpleNamespace
import torch, pyflash
from pyflash.op import backward, selection
from pyflash.op.backward import choice, kernels

ANY = json.loads(sys.argv[2])
asked = json.load(sys.stdin)
found = {"before": kernels.are_built()}
pyflash.load(sys.argv[1])
found["after"] = kernels.are_built()
for name, (changes, sm_arch) in asked.items():
    found[name] = torch.ops.pyflash.select_backward(
        **changes, sm_arch=sm_arch, n_sms=132, deterministic=name == "deterministic"
    )
torch.cuda.is_available = lambda: True
torch.cuda.get_device_properties = lambda _: SimpleNamespace(
    major=9, minor=0, multi_processor_count=132
)
torch.cuda.get_device_capability = lambda _=None: (9, 0)
problem = dict(batch=2, heads_q=4, heads_kv=2, seqlen_q=200, seqlen_k=300, d_head=128, dtype="BF16")
tell = lambda **options: selection._backward(pyflash.Problem(**problem, options=options))
found["tells"] = tell(causal=True)
found["tells chunk"] = tell(attention_chunk=64)
found["tells softcap"] = tell(softcap=20.0)
problem["packed"] = True
found["tells packed"] = tell()
problem["packed"] = False
torch.__version__ = "2.11.0"
torch.backends.cudnn.is_available = lambda: True
found["tells window"] = tell(window_left=30)
problem["seqlen_k"] = 200
found["tells square"] = tell(causal=True)
problem.update(seqlen_q=64, seqlen_k=64)
found["tells few keys"] = tell()
H200 = torch.device("cuda", 0)
plain = dict(ANY, seqlen_k=200)
causal = plain | {"causal": True}
for name, asked, gradient_of_lse in (
    ("plain", plain, False),
    ("gradient of lse", plain, True),
    ("causal", causal, False),
    ("window", plain | {"window_left": 20}, False),
    ("chunk", plain | {"attention_chunk": 32}, False),
    ("low scale", plain | {"dtype": 15, "softmax_scale": 1e-3}, False),
    ("many heads", plain | {"heads": 1 << 17, "heads_kv": 1 << 17}, False),
    ("another dtype", plain | {"dtype": 5, "softmax_scale": 1e-3}, False),
    ("refused", plain | {"seqlen_k": 64, "seqlen_q": 64, "d_head": 64}, False),
    ("softcap", plain | {"softcap": 20.0}, False),
    ("packed", plain | {"packed": True}, False),
):
    found["by " + name] = choice.choose(H200, asked, gradient_of_lse).by.name
torch.use_deterministic_algorithms(True)
found["tells deterministic"] = tell()
json.dump(found, sys.stdout)
"""
WIDE, WIDE_ALL = (f"(BF16, 128, 64, 128, 2): sm90_bwd+stages_{n}" for n in (3, 2))
NARROW = "(BF16, 64, 128, 128, 2): sm90_bwd+stages_2"
# What is asked for beside ANY, where, the config, and words of the reason.
CASES = {
    "first in rank": ({}, 90, WIDE, "the first in rank"),
    "covers a left window": ({"window_left": 50}, 90, WIDE_ALL, "the first in rank"),
    "the smallest d_head": ({"d_head": 40}, 90, NARROW, "the first in rank"),
    "the next d_head": ({"d_head": 72}, 90, WIDE, "the first in rank"),
    "one query": ({"seqlen_q": 1, "heads": 8}, 90, WIDE, "the first in rank"),
    "another dtype": ({"dtype": 5}, 90, "", f"{WIDE} is for BF16, q is FP16"),
    "another GPU": ({}, 80, "", f"{WIDE} does not run on sm_80"),
    "a wide head": ({"d_head": 192}, 90, "", f"{WIDE} is for d_head up to 128, q has d_head 192"),
    "refused": ({"seqlen_k": 64}, 90, "", f"{WIDE} cannot run this problem: it has few keys"),
    "chunk": ({"attention_chunk": 32}, 90, WIDE_ALL, "the first in rank"),
    "softcap": ({"softcap": 20.0}, 90, "", f"{WIDE} is not built with softcap"),
    "packed": ({"packed": True}, 90, "", f"{WIDE} is not built with packed"),
    "deterministic": ({}, 90, "", f"{WIDE} is not built with deterministic"),
    "dropout": ({"dropout_p": 0.1}, 90, "", "; to build kernels with dropout: pyflash build --set"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    library: Path = build_fake_library(tmp_path_factory.mktemp("library"), "fake", "BACKWARD")
    asked = {name: (ANY | changes, sm) for name, (changes, sm, _, _) in CASES.items()}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library), json.dumps(ANY)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", CASES)
def test_what_is_selected(found, name):
    _, _, config, says = CASES[name]
    assert found[name][0] == config
    assert says in found[name][1]


def test_the_map_knows_whether_the_op_is_built(found):
    assert (found["before"], found["after"]) == (False, True)


# Whose kernels compute gradients on an H200 of ANY with as many keys as queries, and changes.
CHOSEN = {
    "plain": "OWN",
    "gradient of lse": "OWN",
    "causal": "OWN",
    "window": "OWN",
    "chunk": "OWN",
    "low scale": "OWN",  # bf16
    "many heads": "OWN",
    "another dtype": "FLASH",  # fp16, of which no own kernel is there
    "refused": "CUDNN",
    "softcap": "FLASH",  # which forward refuses
    "packed": "FLASH",
}


@pytest.mark.parametrize("name", CHOSEN)
def test_whose_kernels_run(found, name):
    assert found[f"by {name}"] == CHOSEN[name]


def test_select_tells_whose_kernels_compute_gradients(found):
    rank = "the first in rank of those built that take it"
    assert found["tells"] == found["tells square"] == f"{WIDE}: {rank}"
    assert found["tells chunk"] == found["tells window"] == f"{WIDE_ALL}: {rank}"
    assert found["tells few keys"].startswith("PyTorch's cuDNN backward: no kernel of pyflash: ")
    says = "none: softcap has no gradients on a GPU; no kernel of pyflash: "
    assert found["tells softcap"].startswith(says)
    assert f"{WIDE} is not built with softcap" in found["tells softcap"]
    assert "PyTorch's flash backward: sequences are packed; no kernel" in found["tells packed"]
    assert "is not built with deterministic" in found["tells deterministic"]
