"""Figures of records: TFLOP/s against length, and a roofline; PNG or SVG by the file's name.

Colours are Okabe and Ito's, which colour-blind readers can distinguish; contenders differ in marker
and line style too, so that a figure reads in grey.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from pyflash.bench.gpus import Gpu, find_gpu
from pyflash.bench.measurements import Series, dates, labels, places, series
from pyflash.bench.plain_text import short_length
from pyflash.bench.records import OURS, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
_DASHES = ("-", "--", "-.", ":")
_PANEL = (5.0, 3.6)  # inches
_TITLE = 44  # characters in a line above a panel
_SAID = ("what", "d_head", "variant", "dtype", "rest", "seqlen_q")
SUFFIXES = (".png", ".svg")
# For readers of dark pages, by the colours that matplotlib writes into an SVG: background, text and
# axes, grid, notes. The text has no colour of its own.
_DARK = """@media (prefers-color-scheme: dark) {
svg { fill: #eceef2 }
[style*="fill: #ffffff"] { fill: #14161b !important }
[style*="fill: #000000"] { fill: #eceef2 !important }
[style*="stroke: #000000"] { stroke: #eceef2 !important }
[style*="stroke: #dddddd"] { stroke: #3d424e !important }
[style*="fill: #444444"] { fill: #b4bac6 !important }
[style*="stroke: #444444"] { stroke: #b4bac6 !important }
}"""


def check_figure(path: Path | None) -> None:
    """Before a run: raises ValueError for a name that is neither PNG nor SVG, ImportError without
    matplotlib."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a name that ends with {' or '.join(SUFFIXES)}")
    require_matplotlib()


def save(figure: Figure, path: Path) -> None:
    """The file appears whole or not at all; the same figure gives the same bytes."""
    from pyflash.codegen.cache_dir import replacing

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        if path.suffix == ".svg":
            partial.write_text(to_svg(figure), encoding="utf-8")
        else:
            figure.savefig(partial, format=path.suffix[1:], dpi=150, metadata={"Software": None})


def to_svg(figure: Figure) -> str:
    """Readable on light and dark pages."""
    file = io.StringIO()
    with require_matplotlib().rc_context({"svg.hashsalt": "pyflash"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue().replace("</style>", f"\n{_DARK}</style>", 1)


def speed(records: Sequence[Record]) -> Figure:
    """TFLOP/s against the number of keys: a panel for each series, named by pass, head dimension,
    mask and what else tells it from others, a line for each contender, with bars from the quartiles
    of its samples.

    Raises ValueError where nothing was timed.
    """
    panels, timed = _panels(records, "tflops")
    if not panels:
        raise ValueError("no contender was timed: a figure has nothing to show")
    figure, axes = _subplots(len(panels))
    for (panel, one), ax in zip(panels, axes, strict=True):
        for name, style in _styles(timed).items():
            points = [
                (length, r["tflops"], r["tflops"] * r["timing"]["spread"] / 2)
                for length, r in _along(one, name, "tflops")
            ]
            if points:
                lengths, rates, errors = zip(*points, strict=True)
                ax.errorbar(lengths, rates, yerr=errors, label=name, capsize=2, **style)
        ax.set_xscale("log", base=2)
        ax.set_xticks(sorted(one.of_length), map(short_length, sorted(one.of_length)))
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set(title=panel, xlabel="keys", ylabel="TFLOP/s")
    _legend(figure, axes, _where(timed))
    return figure


def roofline(records: Sequence[Record], gpu: Gpu | None = None) -> Figure:
    """TFLOP/s against FLOPs per byte of memory traffic (q, k, v read once, out and lse written
    once), below the least of the peak rate and bandwidth times intensity: the panels of `speed`,
    forward passes alone. The fastest point of each length tells the number of keys. `gpu` replaces
    the one that a record names.

    Raises ValueError where nothing was timed, or a GPU's peak rates are not known.
    """
    panels, timed = _panels(records, "gb_per_second")
    if not panels:
        raise ValueError("no forward pass was timed: a roofline has nothing to show")
    roofs = [gpu or _gpu_of(one) for _, one in panels]
    figure, axes = _subplots(len(panels))
    for (panel, one), roof, ax in zip(panels, roofs, axes, strict=True):
        of = {name: dict(_along(one, name, "gb_per_second")) for name in _styles(timed)}
        for name, style in _styles(timed).items():
            points = [_point(record) for record in of[name].values()]
            if points:
                style = style | {"linestyle": "none"}
                ax.plot(*zip(*points, strict=True), label=name, **style)
        for length in one.of_length:
            points = [_point(by_length[length]) for by_length in of.values() if length in by_length]
            if points:
                fastest = max(points, key=lambda point: point[1])
                ax.annotate(short_length(length), fastest, (0, 5), ha="center", fontsize=7, **_NOTE)
        intensities = [_point(r)[0] for by_length in of.values() for r in by_length.values()]
        _draw_roof(ax, roof, intensities)
        ax.set(title=panel)
    _legend(figure, axes, f"rooflines: {_where(timed)}")
    return figure


_NOTE = {"textcoords": "offset points", "color": "#444444"}


def _draw_roof(ax: Axes, gpu: Gpu, intensities: Sequence[float]) -> None:
    """The roof from half of the least intensity to twice the largest, and both axes."""
    ridge = 1e3 * gpu.tflops / gpu.gb_per_second
    least, most = min([ridge, *intensities]) / 2, max([ridge, *intensities]) * 2
    roof = [(x, min(gpu.tflops, gpu.gb_per_second * x / 1e3)) for x in (least, ridge, most)]
    ax.plot(*zip(*roof, strict=True), color="#444444", linewidth=2)
    rates = f"{gpu.name}: {gpu.tflops:g} TFLOP/s, {gpu.gb_per_second:,g} GB/s"
    ax.annotate(rates, roof[-1], (0, 4), ha="right", **_NOTE)
    ax.set(xscale="log", yscale="log", xlabel="FLOPs per byte", ylabel="TFLOP/s")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:,.6g}")
        axis.set_minor_formatter("")
    ax.yaxis.set_major_locator(require_matplotlib().ticker.LogLocator(subs=(1, 2, 5)))


def _gpu_of(one: Series) -> Gpu:
    device = one.records[0]["environment"]["device"]
    gpu = find_gpu(device)
    if gpu is None:
        raise ValueError(f"no roofline: the peak rates of {device} are not known")
    return gpu


def _point(record: Record) -> tuple[float, float]:
    """FLOPs per byte, TFLOP/s."""
    return 1e3 * record["tflops"] / record["gb_per_second"], record["tflops"]


def _panels(
    records: Iterable[Record], figure: str
) -> tuple[list[tuple[str, Series]], list[Record]]:
    """Each series that has this figure, with its label, and their records that have it."""
    found = [one for one in series(records) if any(_has(r, figure) for r in one.records)]
    names = labels([one.facts for one in found], _SAID)
    panels = [(fill(name, _TITLE), one) for name, one in zip(names, found, strict=True)]
    return panels, [r for one in found for r in one.records if _has(r, figure)]


def _has(record: Record, figure: str) -> bool:
    return bool(record["timing"] and record[figure])


def _along(one: Series, contender: str, figure: str) -> list[tuple[int, Record]]:
    """(length, record) where the contender has that figure, ascending."""
    pairs = ((n, one.of_length[n].of(contender)) for n in sorted(one.of_length))
    return [(n, record) for n, record in pairs if record is not None and _has(record, figure)]


def _styles(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(record["contender"] for record in records)
    return {
        name: {
            "color": COLOURS[i % len(COLOURS)],
            "marker": _MARKERS[i % len(_MARKERS)],
            "linestyle": _DASHES[i // len(COLOURS) % len(_DASHES)],
            "markersize": 5,
            "linewidth": 2.5 if name == OURS else 1.5,
        }
        for i, name in enumerate(names)
    }


def _where(records: Sequence[Record]) -> str:
    parts = [places(records)]
    for name, word in (("torch", "torch"), ("cuda", "CUDA")):
        values = dict.fromkeys(record["environment"].get(name) for record in records)
        parts += [f"{word} {value}" for value in values if value]
    return ", ".join([*parts, dates(records)])


def _legend(figure: Figure, axes: Sequence[Axes], where: str) -> None:
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    n_beside = max(1, round(figure.get_figwidth() / (0.6 + 0.085 * max(map(len, handles)))))
    columns = min(3, n_beside, len(handles))
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False
    )
    figure.suptitle(where, fontsize=9, color="#444444")


def _subplots(n_panels: int) -> tuple[Figure, list[Axes]]:
    """Two beside each other."""
    matplotlib = require_matplotlib()
    columns = min(2, n_panels)
    rows = -(-n_panels // columns)
    size = (_PANEL[0] * columns, _PANEL[1] * rows + 0.9)
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for ax in axes[n_panels:]:
        ax.remove()
    for ax in axes[:n_panels]:
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes[:n_panels]


def require_matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError as error:
        raise ImportError(
            f"figures need matplotlib ({error}): pip install 'pyflash[plot]'"
        ) from None
    return matplotlib
