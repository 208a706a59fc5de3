"""The page of a journal."""

from __future__ import annotations

import json
import re

import pytest

from pyflash.tuner.report import TuningReport
from pyflash.ui.page import fragment, page

PROBLEM = "bf16,batch=4,heads=16,seqlen=4096,d_head=128"
GOOD = "(BF16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
SLOW = "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"


def sample(config: str, seconds: float) -> dict:
    return {
        "kind": "sample", "problem": PROBLEM, "config": config, "features": "plain", "rung": 0,
        "seconds": seconds,
    }  # fmt: skip


def journal(folder, *records):
    path = folder / "tune.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


RUN = {"kind": "run", "gpu": "NVIDIA <H200>", "refused": {"smem_limit": 3, "load_counts": 12}}
FAILED = {"kind": "failed", "stage": "check", "reason": "wrong: error 1 > 0.1"}


def test_a_page_tells_winners_effects_and_failures(tmp_path):
    path = journal(
        tmp_path, RUN, sample(GOOD, 2e-3), sample(SLOW, 3e-3), FAILED, FAILED,
        {"kind": "winner", "problem": PROBLEM, "config": GOOD},
    )  # fmt: skip
    report = TuningReport.of(path)
    sections = dict(report.sections())
    flops = 4 * 4 * 16 * 4096 * 4096 * 128
    best = sections["best config of each problem"]
    assert f"{flops / 2e-3 / 1e12:.4g}" in best
    assert "winner" in best
    assert best.count("<tr>") == 2
    assert "B_r of sm80_forward" in sections
    assert "64 50 % slower, 128 0 % slower" in sections["B_r of sm80_forward"]
    assert "B_c of sm80_forward" not in sections  # one value
    assert sections[PROBLEM].index(GOOD) < sections[PROBLEM].index(SLOW)
    assert "wrong: error 1 &gt; 0.1" in sections["failures"]
    assert '<td class="number">2</td>' in sections["failures"]
    refused = sections["refused by rules"]
    assert refused.index("load_counts") < refused.index("smem_limit")
    text = page(report)
    assert "<h1>Tuning on NVIDIA &lt;H200&gt;: tune.jsonl</h1>" in text
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert report._repr_html_() == fragment(report)


def test_a_run_that_was_killed_shows_what_it_has(tmp_path):
    path = journal(tmp_path, RUN, sample(SLOW, 3e-3))
    with path.open("a") as file:
        file.write('{"kind": "sam')
    sections = dict(TuningReport.of(path).sections())
    assert "so far" in sections["best config of each problem"]
    assert "failures" not in sections


def test_a_journal_without_measurements_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no measured candidate"):
        TuningReport.of(journal(tmp_path, RUN))
