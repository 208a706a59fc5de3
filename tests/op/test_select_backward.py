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
from pyflash.op.backward import kernels

asked = json.load(sys.stdin)
found = {"before": kernels.are_built()}
pyflash.load(sys.argv[1])
found["after"] = kernels.are_built()
for name, (changes, sm_arch) in asked.items():
    found[name] = torch.ops.pyflash.select_backward(
        **changes, sm_arch=sm_arch, n_sms=132
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
}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    library: Path = build_fake_library(tmp_path_factory.mktemp("library"), "fake", "BACKWARD")
    asked = {name: (ANY | changes, sm) for name, (changes, sm, _, _) in CASES.items()}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library)],
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


def test_select_tells_whose_kernels_compute_gradients(found):
    assert found["tells"] == f"{WIDE}: the first in rank of those built that take it"
    assert found["tells chunk"] == f"{WIDE_ALL}: the first in rank of those built that take it"
    says = "none: softcap has no gradients on a GPU; no kernel of pyflash: "
    assert found["tells softcap"].startswith(says)
    assert f"{WIDE} is not built with softcap" in found["tells softcap"]
    assert "PyTorch's flash backward: sequences are packed; no kernel" in found["tells packed"]
    assert "dq is summed in any order" in found["tells deterministic"]
