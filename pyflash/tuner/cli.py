"""`pyflash tune`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pyflash.tuner import options
from pyflash.ui.app import (
    HtmlOption,
    JsonOption,
    check_alone,
    check_writable,
    examples,
    new_app,
    print_json,
    show,
    working,
    write_file,
)
from pyflash.ui.problems import Device
from pyflash.ui.variants import AskedVariant, ValueOption, VariantOption

if TYPE_CHECKING:
    from pyflash.op.selection import Problem
    from pyflash.tuner.candidates import AnySpace
    from pyflash.tuner.dry_run import DryRun
    from pyflash.tuner.model import Gpu

app = new_app()

# Prefill and decoding as models do them, at both common head dimensions.
DEFAULT_PROBLEMS = (
    "bf16,batch=4,heads=16,seqlen=4096,d_head=128",
    "bf16,batch=4,heads=16,seqlen=4096,d_head=128,causal",
    "bf16,batch=1,heads=8,seqlen=2048,d_head=128",
    "bf16,batch=2,heads=32,heads_kv=8,seqlen=8192,d_head=128,causal",
    "bf16,batch=16,heads=16,seqlen=512,d_head=128,causal",
    "bf16,batch=8,heads=32,heads_kv=8,seqlen_q=1,seqlen_k=8192,d_head=128",
    "bf16,batch=4,heads=32,seqlen=4096,d_head=64",
    "bf16,batch=4,heads=32,seqlen=4096,d_head=64,causal",
)


@app.command(
    "tune",
    epilog=examples(
        "pyflash tune --problem bf16,batch=4,heads=16,seqlen=4096,d_head=128,causal --install",
        "pyflash tune --space 'sm90_forward d_head=128 B_c=64,128' --dry-run --arch sm_90",
        "pyflash tune --variant alibi --dry-run --arch sm_90",
        "pyflash tune --read tune.jsonl --html tune.html",
    ),
)
def tune_command(
    problem: options.Problems = None,
    space: options.Spaces = None,
    kernels: options.SetName = None,
    config: options.Configs = None,
    journal: options.Journal = Path("tune.jsonl"),
    effort: options.Effort = "normal",
    budget: options.Budget = 300.0,
    limit: options.Limit = 600.0,
    seed: options.Seed = 0,
    variant: VariantOption = None,
    value: ValueOption = None,
    device: Device = None,
    arch: options.ArchOfDevice = None,
    warm: options.Warm = False,
    picture: options.Picture = None,
    html: HtmlOption = None,
    read: options.Read = None,
    install: options.Install = False,
    dry_run: options.DryRun = False,
    as_json: JsonOption = False,
) -> None:
    """Finds the fastest config of a space for each problem.

    Every candidate is checked, then timed, in a process that may crash. The same command with the
    same journal goes on where a run was killed. Needs a GPU, but for --read and --dry-run.
    """
    from pyflash.tuner.api import device_of, tune
    from pyflash.tuner.model import gpu_of
    from pyflash.tuner.problems import parse_problem

    _check(read, dry_run, install, variant, picture, html)
    asked_variant = AskedVariant.of(variant, value)
    if read is not None:
        _show_journal(_report(read), as_json, read, picture, html)
        return
    problems = [parse_problem(text) for text in problem or DEFAULT_PROBLEMS]
    gpu = gpu_of(device_of(device), arch)
    asked = _asked(space or (), config or (), kernels, problems, gpu)
    if dry_run:
        _show(_dry_run(asked, problems, gpu, asked_variant), as_json)
        return
    with _telling_how_to_go_on(journal):
        _check_table(gpu, install)
        result = tune(
            asked,
            problems,
            journal=journal,
            effort=effort,
            budget=budget,
            limit=limit,
            seed=seed,
            device=device,
            arch=arch,
            cold=not warm,
            variant=asked_variant,
        )
    _show_journal(result, as_json, journal, picture, html)
    if install:
        typer.echo(_install(journal), err=as_json)


def _check(
    read: Path | None,
    dry_run: bool,
    install: bool,
    variant: str | None,
    picture: Path | None,
    html: Path | None,
) -> None:
    """Raises ValueError for options that exclude each other, OSError for files that cannot be
    written."""
    from pyflash.bench.figures import check_figure

    check_alone("--read", read, {"--dry-run": dry_run, "--install": install, "--variant": variant})
    check_alone("--dry-run", dry_run, {"--install": install, "--html": html, "--picture": picture})
    check_writable(picture, html)
    check_figure(picture)
    if variant and install:
        raise ValueError("--install: tables have no variants: expected no --variant beside it")


def _dry_run(
    asked: list[AnySpace], problems: list[Problem], gpu: Gpu, variant: AskedVariant | None
) -> DryRun:
    from pyflash.tuner.dry_run import DryRun

    with working("asking the rules and the model of time"):
        return DryRun.of(asked, problems, gpu, variant)


@contextmanager
def _telling_how_to_go_on(journal: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted; to go on: the same command, with --journal {journal}", err=True)
        raise typer.Exit(130) from None


def _check_table(gpu: Gpu, install: bool) -> None:
    """Raises OSError where the table of the GPU cannot be written, before minutes of work."""
    from pyflash.tuner.install import table_path

    check_writable(table_path(gpu.name) if install else None)


def _install(journal: Path) -> str:
    from pyflash.tuner.install import install

    return install(journal)


def _asked(
    spaces: list[str], configs: list[str], kernels: str | None, problems: list[Problem], gpu: Gpu
) -> list[AnySpace]:
    """What is searched: every family of the GPU where nothing is named."""
    from pyflash.config import named_set
    from pyflash.tuner.spaces import default_space, parse_space

    asked: list[AnySpace] = [*map(parse_space, spaces), *configs]
    asked += named_set(kernels) if kernels else []
    return asked or default_space(problems, gpu.arch)


def _show(found: Any, as_json: bool) -> None:
    """A value with `to_json`, which rich can print."""
    if as_json:
        print_json(found.to_json())
    else:
        show(found)


def _report(journal: Path) -> Any:
    from pyflash.tuner.report import TuningReport

    return TuningReport.of(journal)


def _show_journal(
    found: Any, as_json: bool, journal: Path, picture: Path | None, html: Path | None
) -> None:
    """What was found, and the files that are asked for."""
    _show(found, as_json)
    if picture:
        from pyflash.tuner.picture import draw

        draw(journal, picture)
    if html:
        from pyflash.ui.page import page

        write_file(html, page(_report(journal)))
