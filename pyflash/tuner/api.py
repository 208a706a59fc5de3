"""`pyflash.tune`."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from pyflash.config import Arch
from pyflash.op.library import built_configs
from pyflash.op.selection import Problem, check_device
from pyflash.tuner.builder import Builder, KernelBuilder
from pyflash.tuner.candidates import AnySpace, Survey, kernels_for, survey
from pyflash.tuner.contest import Contest
from pyflash.tuner.facts import facts_of, identity_of
from pyflash.tuner.journal import Journal, JournalError
from pyflash.tuner.measurer import Measurer
from pyflash.tuner.model import Gpu, gpu_of
from pyflash.tuner.problems import parse_problem, problem_name
from pyflash.tuner.progress import TuningProgress
from pyflash.tuner.result import TuningResult
from pyflash.tuner.tuning import EFFORTS, Tuning, rng_of
from pyflash.ui.variants import AskedVariant
from pyflash.variant import Variant

BACKEND = "pyflash.tuner.backend:TorchBackend"
_NO_GPU = (
    "no GPU to tune for: the CPU runs no kernels, and has nothing to time; `pyflash tune --read "
    "JOURNAL` shows what another machine measured, `pyflash tune --dry-run` what would be tried"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Measuring:
    """How candidates are measured: a `pyflash.tuner.backend.Backend` by "module:name", its options,
    its builder, and the limits of one request in seconds."""

    backend: str
    options: dict[str, Any]
    builder: Builder
    check_seconds: float = 60.0
    sample_seconds: float = 60.0


def tune(
    space: AnySpace,
    problems: Problem | str | Iterable[Problem | str],
    *,
    journal: str | os.PathLike[str] = "tune.jsonl",
    effort: str = "normal",
    budget: float = 300.0,
    limit: float = 600.0,
    seed: int = 0,
    device: str | None = None,
    arch: Arch | str | int | None = None,
    cold: bool = True,
    variant: AskedVariant | Variant | str | None = None,
    values: Mapping[str, Any] | None = None,
    measuring: Measuring | None = None,
    console: Console | None = None,
) -> TuningResult:
    """Searches `space` for the fastest config for each of `problems` on `device`.

    - space: a `Space`, a config or short form, or an iterable of these, of any families. Configs
      that break a rule are counted by rule; configs that are the same kernel are tried once.
    - problems: `Problem`s or texts as `pyflash.tuner.problems.parse_problem` reads them.
    - journal: every finished measurement is there before the run goes on. A journal that exists is
      gone on from: nothing in it is measured again.
    - effort: "quick", "normal" and "thorough" try 15 %, a third and all of a problem's candidates
      with few samples, and the best of them with more; "exhaustive" takes as many of all.
    - budget: seconds of measuring, over all runs of a journal; limit: seconds of the wall clock,
      compiling included. Both keep something back for the best few.
    - device: the current GPU by default; arch: whose rules hold, by default the device's.
    - cold: inputs are rotated so that L2 does not hold them.
    - variant: tunes kernels with that, the value, its text or the name of a named one; values:
      numbers, and nested lists for tensors, by parameter, which a named one has examples of.
    - measuring: another backend than that of `device`, which may then be "cpu".

    A candidate is checked against the fp32 reference before it is timed. It runs in a process of
    its own; one that crashes or hangs is recorded with the reason, and the run goes on.

    Raises ValueError for an unknown effort, texts that are no problem or config, problems without a
    candidate and a journal of another device or of other kernels; RuntimeError without a GPU, and
    where the worker process does not start or nothing can be compiled.
    """
    if effort not in EFFORTS:
        raise ValueError(f"unknown effort {effort!r}: expected one of {', '.join(EFFORTS)}")
    target = device_of(device)
    if target.type != "cuda" and measuring is None:
        raise RuntimeError(_NO_GPU)
    gpu = gpu_of(target, arch)
    path = Path(journal)
    console = console or Console(stderr=True, highlight=False)
    found = survey(space, gpu.arch)
    contests = _contests(problems, found, gpu, seed, AskedVariant.of_value(variant, values))
    with Journal(path) as log:
        _record_run(log, gpu, target, effort, seed, contests, found)
        measuring = measuring or _measuring(target, gpu, cold, seed, path)
        measurer = Measurer(
            measuring.backend,
            measuring.options,
            measuring.check_seconds,
            measuring.sample_seconds,
        )
        totals = [EFFORTS[effort].n_tried(len(contest.kernels)) for contest in contests]
        run = Tuning(
            contests=contests,
            journal=log,
            builder=measuring.builder,
            measurer=measurer,
            effort=EFFORTS[effort],
            budget=budget,
            limit=limit,
            progress=TuningProgress(console, contests, totals),
        )
        try:
            with measurer:
                run.run()
        finally:
            measuring.builder.close()
            shutil.rmtree(_library_folder(path), ignore_errors=True)
        return TuningResult.of(log, found, contests, gpu)


def device_of(name: str | None) -> torch.device:
    """The current GPU by default, and the CPU where there is none. Raises ValueError for what is no
    device of pyflash, RuntimeError for a GPU that is not there."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available() and name.startswith("cuda"):
        raise RuntimeError(_NO_GPU)
    return check_device(name)


def _contests(
    problems: Problem | str | Iterable[Problem | str],
    found: Survey,
    gpu: Gpu,
    seed: int,
    asked: AskedVariant | None = None,
) -> list[Contest]:
    if isinstance(problems, Problem | str):
        problems = [problems]
    unique = {}
    for problem in problems:
        problem = parse_problem(problem) if isinstance(problem, str) else problem
        unique.setdefault(problem_name(problem, asked), problem)
    if not unique:
        raise ValueError("no problems to tune for")
    contests = []
    for name, problem in unique.items():
        kernels = kernels_for(problem, found.legal, asked and asked.variant)
        if not kernels:
            rules = ", ".join(f"{rule} ({n})" for rule, n in found.refused.most_common(3))
            room = ", and room for the variant (pyflash build --list --variant)" if asked else ""
            raise ValueError(
                f"no candidate for {name} among {found.n_configs} configs: {found.n_refused} break "
                f"rules of {gpu.arch}{f', the most {rules}' if rules else ''}, and of the others "
                f"none has its dtype and a d_head that is large enough{room}"
            )
        contests.append(Contest(problem, kernels, gpu, rng_of(seed, name), asked))
    return contests


def _measuring(device: torch.device, gpu: Gpu, cold: bool, seed: int, journal: Path) -> Measuring:
    options = {"device": str(device), "cold": cold, "seed": seed}
    builder = KernelBuilder(gpu.arch, _library_folder(journal), cubins=bool(built_configs()))
    return Measuring(BACKEND, options, builder)


def _library_folder(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}.libraries").resolve()


def _record_run(
    journal: Journal,
    gpu: Gpu,
    device: torch.device,
    effort: str,
    seed: int,
    contests: list[Contest],
    found: Survey,
) -> None:
    """Records the arguments of a run. Refuses a journal of another GPU or of other kernels, whose
    figures do not hold here."""
    identity = identity_of(gpu)
    for run in journal.of_kind("run"):
        known = {name: run.get(name) for name in identity}
        if known != identity:
            raise JournalError(
                f"{journal.path} was measured on {known['gpu']} (sm_{known['sm']}) with kernels "
                f"{known['kernels']}, this is {gpu.name} (sm_{gpu.arch.sm}) with "
                f"{identity['kernels']}: name another journal"
            )
    journal.append(
        "run",
        what="tune",
        **facts_of(gpu, device),
        effort=effort,
        seed=seed,
        problems={contest.name: len(contest.kernels) for contest in contests},
        configs=found.n_configs,
        legal=len(found.legal),
        repeated=found.n_repeated,
        refused=dict(found.refused),
        examples=found.examples,
    )
