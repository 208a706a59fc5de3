"""The options of `pyflash tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyflash.ui.app import known_archs, known_configs, known_sets

Problems = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PROBLEM",
        help="bf16,batch=4,heads=16,heads_kv=4,seqlen=4096,d_head=128,causal; may be repeated. "
        "Eight usual ones by default.",
    ),
]
Spaces = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPACE",
        help="'sm90_forward d_head=128 B_c=64,128 overlap=true'; may be repeated. Every family "
        "of the GPU by default.",
    ),
]
SetName = Annotated[
    str | None,
    typer.Option(
        "--set",
        metavar="NAME",
        autocompletion=known_sets,
        help="A named set of configs.",
    ),
]
Configs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONFIG",
        autocompletion=known_configs,
        help="A short form; may be repeated.",
    ),
]
Journal = Annotated[
    Path,
    typer.Option(metavar="FILE", help="Every measurement; an existing one is gone on from."),
]
Effort = Annotated[
    str,
    typer.Option(
        metavar="EFFORT",
        help="quick, normal, thorough or exhaustive: 15 %, a third, or all.",
    ),
]
Budget = Annotated[float, typer.Option(metavar="SECONDS", help="The most time to measure.")]
Limit = Annotated[float, typer.Option(metavar="SECONDS", help="In all, compiling included.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seeds the search.")]
ArchOfDevice = Annotated[
    str | None,
    typer.Option(
        metavar="ARCH",
        autocompletion=known_archs,
        help="Whose rules hold; that of the device by default.",
    ),
]
Warm = Annotated[bool, typer.Option("--warm", help="Inputs may stay in L2.")]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draws the journal, speeds and main effects: .png or .svg."),
]
Read = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Shows a journal, of any machine, instead of measuring."),
]
Install = Annotated[
    bool,
    typer.Option(
        "--install",
        help="Makes the journal's winners what selection takes for such problems, for this "
        "user. With an existing journal and no time, --limit 0, nothing is measured.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Shows candidates and refusals; measures nothing.")
]
