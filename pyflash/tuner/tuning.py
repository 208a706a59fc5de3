"""The tuning run: which candidates are compiled and measured when, and what is kept of it."""

from __future__ import annotations

import datetime
import math
import random
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from pyflash.tuner.builder import Batch, Builder, Built, Kernel
from pyflash.tuner.contest import LAST_RUNG, Contest
from pyflash.tuner.journal import Journal, Record
from pyflash.tuner.measurer import CandidateError, Measurer
from pyflash.tuner.progress import TuningProgress


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is tried."""

    share: float  # of a problem's legal candidates, at most
    samples: tuple[int, int, int]  # of a candidate in each rung
    survivors: tuple[int, int]  # into the second rung at most, and into the last

    def n_tried(self, n_candidates: int) -> int:
        """At least a few candidates."""
        return min(n_candidates, max(math.floor(self.share * n_candidates), 4))


EFFORTS = {
    "quick": Effort(0.15, (3, 7, 21), (6, 3)),
    "normal": Effort(1 / 3, (3, 9, 31), (12, 5)),
    "thorough": Effort(1.0, (3, 9, 31), (24, 6)),
    # Every candidate as carefully as the winner; all that may be the best, which were in several
    # batches, once more beside each other.
    "exhaustive": Effort(1.0, (31, 31, 31), (24, 12)),
}
_KEPT = 1 / 3  # of a rung's candidates go on to the next
# What remains of budget and time for the second and the last rung.
_RESERVE = 0.12
# At least so many are compiled and measured one after another, if there is that much to try.
_BATCHES = 5


@dataclass
class Tuning:
    """A run over `contests`, whose `run` returns when all have winners, or when budget or time are
    spent. Everything finished is in the journal; a run that is given a journal goes on from it."""

    contests: list[Contest]
    journal: Journal
    builder: Builder
    measurer: Measurer
    effort: Effort
    budget: float  # seconds of measuring
    limit: float  # seconds of the wall clock
    progress: TuningProgress
    _built: dict[Kernel, Built] = field(default_factory=dict)
    _start: float = field(default_factory=time.monotonic)
    _recorded: float = 0.0  # of the measurer's seconds, those that are in the journal

    def run(self) -> None:
        self._restore()
        with self.progress:
            self._explore()
            for contest in self.contests:
                self._refine(contest)

    # Which candidates

    def _restore(self) -> None:
        """What the journal says of the contests' candidates; budget that was spent is spent."""
        by_name = {contest.name: contest for contest in self.contests}
        kernels = {contest.name: set(contest.kernels) for contest in self.contests}
        for record in self.journal.records:
            self.measurer.seconds += record.get("spent", 0.0)
            contest = by_name.get(record.get("problem", ""))
            if record["kind"] not in ("sample", "failed") or contest is None:
                continue
            kernel = Kernel.of_record(record)
            if kernel.compiled in kernels[contest.name]:
                contest.restore(record, kernel)
        self._recorded = self.measurer.seconds

    def _explore(self) -> None:
        """The first rung: while a batch is measured, the next one is compiled."""
        if not self._may_go_on():
            return
        pending = self._submit(self._next_batch(()))
        while pending is not None:
            batch = self._result(pending)
            if batch is None:
                self.builder.cancel()
                return
            pending = self._submit(self._next_batch(batch.built))
            self._measure_batch(batch)
            if not self._may_go_on():
                self.builder.cancel()
                return

    def _next_batch(self, in_hand: Iterable[Kernel]) -> list[Kernel]:
        """As many as the builder wants, the problems taking turns; a kernel that one problem takes
        is measured for all that it runs."""
        taken = set(in_hand)
        choices = {}
        for contest in self.contests:
            expected = contest.tried | {kernel for kernel in taken if kernel in contest.modelled}
            room = self.effort.n_tried(len(contest.kernels)) - len(expected)
            choices[contest.name] = contest.next_choices(taken)[:room] if room > 0 else []
        # Small batches where there are few to try: later batches use what earlier ones measured.
        wanted = sum(self.effort.n_tried(len(contest.kernels)) for contest in self.contests)
        size = min(self.builder.batch_size, math.ceil(wanted / _BATCHES))
        batch: list[Kernel] = []
        while len(batch) < size and any(choices.values()):
            for contest in self.contests:
                mine = [k for k in choices[contest.name] if k not in batch]
                choices[contest.name] = mine[1:]
                if mine and len(batch) < size:
                    batch.append(mine[0])
        return batch

    def _submit(self, kernels: list[Kernel]) -> Future[Batch] | None:
        return self.builder.submit(kernels) if kernels else None

    def _result(self, pending: Future[Batch]) -> Batch | None:
        """None: time was up before."""
        rest = self.limit * (1 - _RESERVE) - (time.monotonic() - self._start)
        self.progress.say("compiling")
        if not wait([pending], timeout=max(0.0, rest)).done:
            return None
        batch = pending.result()
        self._built |= batch.built
        self.journal.append(
            "built",
            kernels=len(batch.built),
            failed=sum(built.reason is not None for built in batch.built.values()),
            seconds=round(batch.seconds, 3),
        )
        return batch

    def _may_go_on(self) -> bool:
        spent = time.monotonic() - self._start
        left = 1 - _RESERVE
        return self.measurer.seconds < self.budget * left and spent < self.limit * left

    # Measuring

    def _measure_batch(self, batch: Batch) -> None:
        for contest in self.contests:
            tried = contest.tried
            mine = [k for k in batch.built if k in contest.modelled and k not in tried]
            mine = mine[: max(0, self.effort.n_tried(len(contest.kernels)) - len(tried))]
            correct = [kernel for kernel in mine if self._check(contest, kernel)]
            if correct and self._may_go_on():
                self._sample(contest, correct, rung=0)
            self.progress.show(contest)

    def _check(self, contest: Contest, kernel: Kernel) -> bool:
        built = self._built[kernel.compiled]
        if built.reason is not None:
            self._fail(contest, kernel, "build", built.reason)
            return False
        try:
            self.measurer.check(contest.json, self._candidate(kernel))
        except CandidateError as error:
            self._fail(contest, kernel, "check", str(error))
            return False
        return True

    def _sample(self, contest: Contest, kernels: Sequence[Kernel], rung: int) -> None:
        """Times them in turns with a known candidate, the anchor, which corrects for the clock. If
        that fails, times each alone, to find the one that fails."""
        known = (k for k in contest.ranking() if k.compiled in self._built)
        anchor = next((k for k in known if k not in kernels), None)
        group = [*kernels, *filter(None, [anchor])]
        n_samples = self.effort.samples[rung]
        try:
            samples = self.measurer.sample(contest.json, [*map(self._candidate, group)], n_samples)
        except CandidateError as error:
            if len(kernels) == 1:
                self._fail(contest, kernels[0], "sample", str(error))
                return
            for kernel in kernels:
                self._sample(contest, [kernel], rung)
            return
        correction = 1.0
        if anchor is not None:
            correction = contest.standings[anchor].seconds / median(samples.pop())
        spent = self._unrecorded() / len(kernels)
        for kernel, values in zip(kernels, samples, strict=True):
            lower, middle, upper = quantiles(values, n=4, method="inclusive")
            record = self.journal.append(
                "sample",
                problem=contest.name,
                **_named(kernel),
                rung=rung,
                seconds=middle * correction,
                spread=round((upper - lower) / middle, 4),
                samples=values,
                anchor=str(anchor) if anchor else None,
                spent=round(spent, 4),
            )
            contest.restore(record, kernel)

    def _refine(self, contest: Contest) -> None:
        """The second rung, and the last: the best few once more, in turns. The first few enter the
        second rung with several numbers of splits, too."""
        for rung in range(1, LAST_RUNG + 1):
            ranking = contest.ranking(rung - 1)
            n_kept = min(self.effort.survivors[rung - 1], max(2, math.ceil(_KEPT * len(ranking))))
            kept = ranking[:n_kept]
            missing = [k for k in kept if rung not in contest.standings[k].by_rung]
            self._need(missing)
            if rung == 1:
                missing += self._with_splits(contest, kept[: self.effort.survivors[1]])
            able = [k for k in missing if self._built[k.compiled].reason is None]
            if able:
                self.progress.say(f"the best {n_kept} of {contest.name}")
                self._sample(contest, able, rung)
        finalists = contest.ranking(LAST_RUNG)
        known = [r for r in self.journal.of_kind("winner") if r["problem"] == contest.name]
        if finalists:
            record = _winner(contest, finalists)
            contest.winner = known[-1] if known and _says(known[-1], record) else None
            contest.winner = contest.winner or self.journal.append("winner", **record)
        self.progress.show(contest)

    def _with_splits(self, contest: Contest, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Those with other numbers of splits that are not measured yet, and compute the problem."""
        missing = [
            split for k in kernels for split in contest.with_splits(k)
            if split not in contest.standings
        ]  # fmt: skip
        self._need(missing)
        return [split for split in missing if self._check(contest, split)]

    def _need(self, kernels: Sequence[Kernel]) -> None:
        """Compiled, or found in the cache, when they were measured in a run before this one."""
        needed = dict.fromkeys(kernel.compiled for kernel in kernels)
        missing = [kernel for kernel in needed if kernel not in self._built]
        if missing:
            self._built |= self.builder.submit(missing).result().built

    def _candidate(self, kernel: Kernel) -> dict[str, Any]:
        library = self._built[kernel.compiled].library
        return {"config": str(kernel.config), "num_splits": kernel.num_splits, "library": library}

    def _unrecorded(self) -> float:
        """Seconds of measuring since the last record, which the next ones are to have."""
        seconds, self._recorded = self.measurer.seconds - self._recorded, self.measurer.seconds
        return seconds

    def _fail(self, contest: Contest, kernel: Kernel, stage: str, reason: str) -> None:
        record = self.journal.append(
            "failed",
            problem=contest.name,
            **_named(kernel),
            stage=stage,
            reason=reason,
            spent=round(self._unrecorded(), 4),
        )
        contest.restore(record, kernel)
        self.progress.say(f"{kernel}: {reason}")


def _winner(contest: Contest, finalists: list[Kernel]) -> dict[str, Any]:
    best = finalists[0]
    standing = contest.standings[best]
    return {
        "problem": contest.name,
        "values": contest.json,
        **_named(best),
        "seconds": standing.seconds,
        "spread": standing.spread,
        "runners_up": {str(kernel): contest.standings[kernel].seconds for kernel in finalists[1:]},
        "n_candidates": len(contest.kernels),
        "n_measured": len(contest.measured),
        "n_failed": len(contest.failed),
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _says(known: Record, record: dict[str, Any]) -> bool:
    """Whether a journal's winner is this one."""
    return all(known.get(name) == value for name, value in record.items() if name != "time")


def _named(kernel: Kernel) -> dict[str, Any]:
    named = {
        "config": str(kernel.config),
        "features": str(kernel.features),
        "num_splits": kernel.num_splits,
    }
    return named | ({"variant": kernel.variant} if kernel.variant else {})


def rng_of(seed: int, name: str) -> random.Random:
    """A generator for each problem, so that its draws do not depend on the others."""
    return random.Random(f"{seed} {name}")
