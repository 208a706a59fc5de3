"""The options of `pyflash bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyflash.ui.app import completed_from, known_configs, known_sets

FORMATS = ("table", "json", "csv", "cutlass", "markdown")
Configs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG",
        autocompletion=known_configs,
        help="Short forms; the selected config by default. Or packed, ragged or mixed: "
        "sequences of different lengths.",
    ),
]
SetName = Annotated[
    str | None,
    typer.Option("--set", metavar="NAME", autocompletion=known_sets, help="A named set instead."),
]
Backends = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME",
        help="Some of flash, cudnn, efficient, math, flex, flash_attn_2, flash_attn_3, "
        "xformers, flashinfer, or none; those that are importable by default.",
    ),
]
Passes = Annotated[
    str,
    typer.Option("--pass", metavar="PASS,PASS", help="Some of forward, backward, both."),
]
Decode = Annotated[bool, typer.Option("--decode", help="One query; lengths are keys.")]
Seqlens = Annotated[
    str | None,
    typer.Option(
        metavar="N,N", help="Queries and keys, such as 512,1k. 4k by default, 512 on the CPU."
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="batch is tokens / seqlen. 16384 by default, 512 on the CPU.",
    ),
]
DHeads = Annotated[str, typer.Option(metavar="N,N", help="Head dimensions, such as 64,128.")]
HeadsOrWidth = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="2048 / d_head by default, 256 / d_head on the CPU."),
]
Masks = Annotated[
    str,
    typer.Option(
        metavar="MASK,MASK", help="Some of full and causal, whose FLOPs are counted halved."
    ),
]
Samples = Annotated[int, typer.Option(metavar="N", min=2, help="Samples of each contender.")]
Host = Annotated[bool, typer.Option("--host", help="Host time per call of a tiny problem instead.")]
Read = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Shows the records of a file instead of measuring: those that the other options "
        "name, or all.",
    ),
]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="JSON lines: records are appended.")]
Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="The records as CSV.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="TFLOP/s by length: .png or .svg.")]
Roofline = Annotated[Path | None, typer.Option(metavar="FILE", help="A roofline: .png or .svg.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        autocompletion=completed_from(FORMATS),
        help=f"On stdout: {', '.join(FORMATS)}.",
    ),
]
Over = Annotated[
    str,
    typer.Option(metavar="CONTENDER", help="Whose speed --format markdown divides by."),
]
