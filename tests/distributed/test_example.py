"""The example runs as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_long_context():
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    example = ("--nproc-per-node", "2", "examples/long_context.py", "--seqlen", "128")
    run = subprocess.run(
        [*torchrun, *example],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "128 tokens on 2 ranks" in run.stdout
