"""Every op as the first use of CUDA in a new thread, as in a server's workers."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from support.first_calls import OPS, STREAMS, run_in_new_thread

from pyflash import built_configs
from pyflash.config import FAMILIES, family_of

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
FAMILY_NAMES = ["", *(family.name for family in FAMILIES)]


def devices():
    return [f"cuda:{i}" for i in range(min(2, torch.cuda.device_count()))]


def skip_unbuilt(family):
    if family and not any(family_of(config).name == family for config in built_configs()):
        pytest.skip(f"no config of {family} is built")


@pytest.mark.parametrize("device", devices() if torch.cuda.is_available() else ["cuda:0"])
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("op", OPS)
def test_first_call_of_a_thread(op, family, stream, device):
    """Pitfall 27: the first CUDA call of a thread."""
    skip_unbuilt(family)
    assert run_in_new_thread(op, family, stream, device) == "right"


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("op", OPS)
def test_first_call_of_a_process_in_a_thread(op, family):
    """Pitfall 27: the first CUDA call of a thread.
    The call itself loads the kernel library; the main thread only made tensors."""
    skip_unbuilt(family)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-m", "support.first_calls", json.dumps([op, family])],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.stdout.strip() == "right", result.stderr


def test_many_threads_at_once():
    results = []
    threads = [
        threading.Thread(
            target=lambda op=op: results.append(run_in_new_thread(op, "", "current", "cuda:0"))
        )
        for op in OPS * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["right"] * len(threads)
