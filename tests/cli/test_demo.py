"""What the demo shows; what it compiles is in other tests."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pyflash import demo
from pyflash.cli import app
from pyflash.config import FlashForwardKernelConfig
from pyflash.config.features import NAMES

CONFIG = FlashForwardKernelConfig.parse(
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
)
FEATURES = list(map(CONFIG.family.op.features.of, demo.FEATURES))


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_resource_table_is_whole_at_any_width(width):
    kernels = []
    for i, features in enumerate(FEATURES):
        flags = "".join(f"Lb{int(getattr(features, name))}E" for name in NAMES)
        kernels += [
            {
                "arch": arch.sm,
                "function": f"15ForwardFeatures{flags}E",
                "registers": 150 + i,
                "spill_store_bytes": 1000 + i,
                "spill_load_bytes": 2000,
                "static_smem_bytes": 0,
            }
            for arch in demo.ARCHS
        ]
    console = Console(width=width, record=True)
    with console.capture() as shown:
        console.print(demo._resource_table(CONFIG, kernels), crop=False)
    numbers = Counter(re.findall(r"\d+", shown.get()))
    for i in range(len(FEATURES)):
        assert numbers[str(150 + i)] == 2
        assert numbers[str(3000 + i)] == 2
    assert numbers[str(CONFIG.smem_bytes)] == 2 * (len(FEATURES) + 1)
    assert numbers[str(CONFIG.resources("sm_80").registers)] >= 1


def test_a_demo_that_finds_something_wrong_says_it_in_a_line(monkeypatch):
    def wrong(_):
        raise AssertionError("out: 0.5 at (0, 1)\nbound 0.1")

    monkeypatch.setattr(demo, "demo_on_cpu", wrong)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["demo"])
    assert (result.exit_code, result.stderr) == (
        1,
        "error: demo failed: out: 0.5 at (0, 1); bound 0.1\n",
    )


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_demo_shows_its_steps_or_what_it_found(monkeypatch, words):
    """What takes a compiler is played here: a kernel's report, and what ptxas says."""
    config = FlashForwardKernelConfig.parse(demo.pyflash.named_set("prog")[0].short_form())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    emulated = [{"config": str(config)}, {"config": demo.HOPPER}]
    found = (emulated, [{"registers": 168}])
    monkeypatch.setattr(demo, "_emulate_and_compile", lambda *_: found)
    monkeypatch.setattr(demo, "_resource_table", lambda *_: "predicted beside ptxas")
    result = CliRunner().invoke(app, ["demo", *words])
    assert result.exit_code == 0, result.stderr
    steps = result.stderr if words else result.stdout
    for step in ("Config", "attention of", "max |error|", "as C++", "predicted beside ptxas"):
        assert step in steps
    if words:
        found = json.loads(result.stdout)
        assert found["attention"]["error"] <= found["attention"]["bound"]
        assert len(found["emulated"]) == 2
        assert found["compiled"] == [{"registers": 168}]
