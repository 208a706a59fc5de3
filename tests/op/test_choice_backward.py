"""Kernels of families that no GPU was measured with run what nothing else does, or on request."""

import pytest
import torch

from pyflash.config import named_set
from pyflash.op.backward import choice
from pyflash.op.backward.choice import By

PROBLEM = {
    "dtype": 15, "packed": False, "batch": 1, "heads": 4, "heads_kv": 4, "seqlen_q": 64,
    "seqlen_k": 64, "d_head": 64,
}  # fmt: skip
UNMEASURED = str(named_set("backward_sm80")[0])
MEASURED = str(named_set("backward")[0])


@pytest.mark.parametrize(
    ("config", "options", "gradient_of_lse", "asked", "expected"),
    [
        (UNMEASURED, {}, False, "", By.FLASH),
        (UNMEASURED, {}, False, "own", By.OWN),
        (UNMEASURED, {}, True, "", By.OWN),
        (UNMEASURED, {"softcap": 20.0}, False, "", By.OWN),
        (UNMEASURED, {"deterministic": True}, False, "", By.OWN),
        (MEASURED, {}, False, "", By.OWN),
    ],
)
def test_who_runs(monkeypatch, config, options, gradient_of_lse, asked, expected):
    monkeypatch.setenv("PYFLASH_BACKWARD", asked)
    monkeypatch.setattr(choice, "_own", lambda *_: (config, "named here"))
    monkeypatch.setattr(choice, "_refusal_of_cudnn", lambda *_: "it does not suit")
    device = torch.device("cuda", 0)
    assert choice.choose(device, PROBLEM | options, gradient_of_lse).by is expected
