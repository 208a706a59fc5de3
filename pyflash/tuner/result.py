"""The result of a tuning run: winners, and the share of the space that was tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from pyflash.config import KernelConfig, parse
from pyflash.op.selection import Problem
from pyflash.tuner.candidates import Survey
from pyflash.tuner.contest import Contest
from pyflash.tuner.journal import Journal
from pyflash.tuner.model import Gpu, flops


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest config for a problem, of those that were measured in the last rung."""

    problem: Problem
    config: KernelConfig
    num_splits: int  # 0: chosen by the rule
    seconds: float  # per call, median
    spread: float  # interquartile range of its samples over their median
    tflops: float  # for scores that are not masked
    lead: float | None  # seconds of the second over these; None: there is none


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of one problem's candidates were tried."""

    n_candidates: int
    n_measured: int
    n_samples: int
    failed: Counter[str]  # by reason

    @property
    def share(self) -> float:
        """The share of the candidates that were tried."""
        return (self.n_measured + self.failed.total()) / self.n_candidates


@dataclass(frozen=True)
class TuningResult:
    winners: dict[str, Winner]  # by the problem's text; without those that nothing was found for
    coverage: dict[str, Coverage]
    refused: Counter[str]  # configs by the rule that they break
    n_configs: int
    n_legal: int
    gpu: str
    journal: Path

    @classmethod
    def of(cls, journal: Journal, found: Survey, contests: list[Contest], gpu: Gpu) -> TuningResult:
        return cls(
            winners={c.name: _winner(c) for c in contests if c.winner},
            coverage={
                c.name: Coverage(
                    len(c.kernels), len(c.measured), c.n_samples, Counter(c.failed.values())
                )
                for c in contests
            },
            refused=found.refused,
            n_configs=found.n_configs,
            n_legal=len(found.legal),
            gpu=gpu.name,
            journal=journal.path,
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "gpu": self.gpu,
            "journal": str(self.journal),
            "configs": self.n_configs,
            "legal": self.n_legal,
            "refused": dict(self.refused),
            "problems": {
                name: {
                    "candidates": coverage.n_candidates,
                    "measured": coverage.n_measured,
                    "samples": coverage.n_samples,
                    "failed": dict(coverage.failed),
                    "winner": _winner_json(self.winners.get(name)),
                }
                for name, coverage in self.coverage.items()
            },
        }

    def __rich__(self) -> Group:
        table = Table("us", "TFLOP/s", "lead", "tried", "failed", box=None, padding=(0, 1))
        table.add_column("best", overflow="fold")
        table.add_column("problem", overflow="fold")
        for name, coverage in self.coverage.items():
            winner = self.winners.get(name)
            figures = ("-", "-", "-")
            if winner:
                lead = f"{winner.lead:.3f}" if winner.lead else "-"
                figures = (f"{winner.seconds * 1e6:.1f}", f"{winner.tflops:.1f}", lead)
            tried = f"{coverage.n_measured + coverage.failed.total()}/{coverage.n_candidates}"
            config = str(winner.config) if winner else "nothing was measured"
            if winner and winner.num_splits:
                config += f" x{winner.num_splits}"
            table.add_row(*figures, tried, str(coverage.failed.total()), config, name)
        lines = [f"{self.n_configs} configs, {self.n_legal} legal kernels on {self.gpu}"]
        if self.refused:
            rules = ", ".join(f"{rule} {n}" for rule, n in self.refused.most_common())
            lines.append(f"refused by {rules}")
        reasons: Counter[str] = sum((c.failed for c in self.coverage.values()), Counter())
        lines += [f"failed {n} times: {reason}" for reason, n in reasons.most_common()]
        return Group(table, *lines, f"journal: {self.journal}")


def _winner(contest: Contest) -> Winner:
    record = contest.winner
    second = min(record["runners_up"].values(), default=None)
    return Winner(
        problem=contest.problem,
        config=parse(record["config"]),
        num_splits=record.get("num_splits", 0),
        seconds=record["seconds"],
        spread=record["spread"],
        tflops=flops(contest.problem) / record["seconds"] / 1e12,
        lead=second / record["seconds"] if second else None,
    )


def _winner_json(winner: Winner | None) -> dict[str, Any] | None:
    if winner is None:
        return None
    return {
        "config": str(winner.config),
        "num_splits": winner.num_splits,
        "seconds": winner.seconds,
        "spread": winner.spread,
        "tflops": winner.tflops,
        "lead": winner.lead,
    }
