"""`pyflash tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyflash.ui.app import (
    HtmlOption,
    JsonOption,
    check_alone,
    check_writable,
    examples,
    known_archs,
    known_configs,
    known_sets,
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
    problem: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROBLEM",
            help="bf16,batch=4,heads=16,heads_kv=4,seqlen=4096,d_head=128,causal; may be repeated. "
            "Eight usual ones by default.",
        ),
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPACE",
            help="'sm90_forward d_head=128 B_c=64,128 overlap=true'; may be repeated. Every family "
            "of the GPU by default.",
        ),
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="NAME",
            autocompletion=known_sets,
            help="A named set of configs.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONFIG",
            autocompletion=known_configs,
            help="A short form; may be repeated.",
        ),
    ] = None,
    journal: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Every measurement; an existing one is gone on from."),
    ] = Path("tune.jsonl"),
    effort: Annotated[
        str,
        typer.Option(
            metavar="EFFORT",
            help="quick, normal, thorough or exhaustive: 15 %, a third, or all.",
        ),
    ] = "normal",
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="The most time to measure.")
    ] = 300.0,
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="In all, compiling included.")
    ] = 600.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seeds the search.")] = 0,
    variant: VariantOption = None,
    value: ValueOption = None,
    device: Device = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="ARCH",
            autocompletion=known_archs,
            help="Whose rules hold; that of the device by default.",
        ),
    ] = None,
    warm: Annotated[bool, typer.Option("--warm", help="Inputs may stay in L2.")] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draws the journal, speeds and main effects: .png or .svg."
        ),
    ] = None,
    html: HtmlOption = None,
    read: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Shows a journal, of any machine, instead of measuring."),
    ] = None,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="Makes the journal's winners what selection takes for such problems, for this "
            "user. With an existing journal and no time, --limit 0, nothing is measured.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Shows candidates and refusals; measures nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Finds the fastest config of a space for each problem.

    Every candidate is checked, then timed, in a process that may crash; a run that is killed goes
    on where it was when it is started again with the same journal. Needs a GPU, but for --read and
    --dry-run.
    """
    from pyflash.bench.figures import check_figure
    from pyflash.tuner.api import device_of, tune
    from pyflash.tuner.model import gpu_of
    from pyflash.tuner.problems import parse_problem

    check_alone("--read", read, {"--dry-run": dry_run, "--install": install})
    check_alone("--read", read, {"--variant": variant})
    check_alone("--dry-run", dry_run, {"--install": install, "--html": html, "--picture": picture})
    check_writable(picture, html)
    check_figure(picture)
    asked_variant = AskedVariant.of(variant, value)
    if asked_variant and install:
        raise ValueError("--install: tables have no variants: expected no --variant beside it")
    if read is not None:
        _show(_report(read), as_json)
        _write_files(read, picture, html)
        return
    problems = [parse_problem(text) for text in problem or DEFAULT_PROBLEMS]
    gpu = gpu_of(device_of(device), arch)
    asked = _asked(space or (), config or (), kernels, problems, gpu)
    if dry_run:
        from pyflash.tuner.dry_run import DryRun

        with working("asking the rules and the model of time"):
            found = DryRun.of(asked, problems, gpu, asked_variant)
        _show(found, as_json)
        return
    try:
        from pyflash.tuner.install import install as install_winners
        from pyflash.tuner.install import table_path

        check_writable(table_path(gpu.name) if install else None)
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
    except KeyboardInterrupt:
        typer.echo(f"interrupted; to go on: the same command, with --journal {journal}", err=True)
        raise typer.Exit(130) from None
    _show(result, as_json)
    _write_files(journal, picture, html)
    if install:
        typer.echo(install_winners(journal), err=as_json)


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


def _write_files(journal: Path, picture: Path | None, html: Path | None) -> None:
    if picture:
        from pyflash.tuner.picture import draw

        draw(journal, picture)
    if html:
        from pyflash.ui.page import page

        write_file(html, page(_report(journal)))
