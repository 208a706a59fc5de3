"""`pyflash tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyflash.commands.app import check_writable, write_file

if TYPE_CHECKING:
    from pyflash.op.selection import Problem
    from pyflash.tuner.candidates import AnySpace

app = typer.Typer(add_completion=False)

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


@app.command("tune")
def tune_command(
    problem: Annotated[
        list[str] | None,
        typer.Option(
            help="bf16,batch=4,heads=16,heads_kv=4,seqlen=4096,d_head=128,causal; may be repeated. "
            "Eight usual ones by default."
        ),
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="'sm90_forward d_head=128 B_c=64,128 overlap=true'; may be repeated. Every family "
            "of the GPU by default."
        ),
    ] = None,
    kernels: Annotated[str | None, typer.Option("--set", help="A named set of configs.")] = None,
    config: Annotated[list[str] | None, typer.Option(help="A short form; may be repeated.")] = None,
    journal: Annotated[
        Path, typer.Option(help="Every measurement; an existing one is gone on from.")
    ] = Path("tune.jsonl"),
    effort: Annotated[
        str, typer.Option(help="quick, normal, thorough or exhaustive: 15 %, a third, or all.")
    ] = "normal",
    budget: Annotated[float, typer.Option(help="Seconds of measuring.")] = 300.0,
    limit: Annotated[float, typer.Option(help="Seconds in all, compiling included.")] = 600.0,
    seed: int = 0,
    device: Annotated[str | None, typer.Option(help="As torch names it.")] = None,
    arch: Annotated[str | None, typer.Option(help="Whose rules hold; the device's.")] = None,
    warm: Annotated[bool, typer.Option("--warm", help="Inputs may stay in L2.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draws the journal: speeds, main effects. FILE.png or .svg.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="The journal as a page.")] = None,
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
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Searches a space of configs for the fastest one for each problem, on this machine's GPU.

    Every candidate is checked, then timed, in a process that may crash; a run that is killed goes
    on where it was when it is started again with the same journal.
    """
    from rich.console import Console

    try:
        import torch

        from pyflash.bench.figures import check_figure
        from pyflash.config import named_set
        from pyflash.tuner.api import tune
        from pyflash.tuner.model import gpu_of
        from pyflash.tuner.problems import parse_problem
        from pyflash.tuner.spaces import default_space, parse_space

        check_writable(picture, html)
        check_figure(picture)
        problems = [parse_problem(text) for text in problem or DEFAULT_PROBLEMS]
        asked: list[AnySpace] = [*map(parse_space, space or ()), *(config or ())]
        asked += named_set(kernels) if kernels else []
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        gpu = gpu_of(torch.device(device), arch)
        asked = asked or default_space(problems, gpu.arch)
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 160
        if dry_run:
            _show_candidates(console, asked, problems, device, arch)
            return
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
        )
        if as_json:
            typer.echo(json.dumps(result.to_json(), indent=1))
        else:
            console.print(result)
        if picture:
            from pyflash.tuner.picture import draw

            draw(journal, picture)
        if html:
            from pyflash.inspect.page import page
            from pyflash.tuner.report import TuningReport

            write_file(html, page(TuningReport.of(journal)))
        if install:
            from pyflash.tuner.install import install as install_winners

            typer.echo(install_winners(journal), err=as_json)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; to go on: the same command, with --journal {journal}", err=True)
        raise typer.Exit(130) from None
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _show_candidates(
    console: object, space: AnySpace, problems: list[Problem], device: str, arch: str | None
) -> None:
    """The first of each problem by the model, and what is refused."""
    import torch
    from rich.table import Table

    from pyflash.tuner.candidates import kernels_for, survey
    from pyflash.tuner.model import gpu_of, predict
    from pyflash.tuner.problems import problem_text

    gpu = gpu_of(torch.device(device), arch)
    found = survey(space, gpu.arch)
    table = Table("us expected", box=None)
    table.add_column("config", overflow="fold")
    for problem in problems:
        kernels = kernels_for(problem, found.legal)
        table.add_row("", f"{problem_text(problem)}: {len(kernels)} candidates", style="bold")
        expected = {kernel.config: predict(kernel.config, problem, gpu) for kernel in kernels}
        for config in sorted(expected, key=expected.__getitem__)[:5]:
            table.add_row(f"{expected[config] * 1e6:.1f}", str(config))
    console.print(table)  # type: ignore[attr-defined]
    refused = ", ".join(f"{rule} {n}" for rule, n in found.refused.most_common()) or "none"
    typer.echo(f"{found.n_configs} configs, {len(found.legal)} legal kernels; refused: {refused}")
