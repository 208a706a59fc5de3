"""Figures of records: TFLOP/s against length, and a roofline; PNG or SVG by the file's name.

Colours are Okabe and Ito's, which people with colour-blindness tell apart; contenders differ in
marker and line style too, so that a figure reads in grey.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflash.bench.records import Record, is_causal, short_length
from pyflash.compare.gpus import Gpu, find_gpu

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
_DASHES = ("-", "--", "-.", ":")
_PANEL = (5.0, 3.6)  # inches
SUFFIXES = (".png", ".svg")
OURS = "pyflash"


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
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with replacing(path) as partial, require_matplotlib().rc_context({"svg.hashsalt": "pyflash"}):
        figure.savefig(partial, format=path.suffix[1:], dpi=150, metadata=metadata)


def to_svg(figure: Figure) -> str:
    file = io.StringIO()
    with require_matplotlib().rc_context({"svg.hashsalt": "pyflash"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def speed(records: Sequence[Record]) -> Figure:
    """TFLOP/s against the number of keys: a panel for each pass, head dimension and mask, a line
    for each contender, with bars from the quartiles of its samples.

    Raises ValueError where nothing was timed.
    """
    timed = _timed(records)
    panels = list(dict.fromkeys(map(_panel, timed)))
    columns = min(2, len(panels))
    figure, axes = _subplots(-(-len(panels) // columns), columns)
    styles = _styles(timed)
    for panel, ax in zip(panels, axes, strict=False):
        mine = [record for record in timed if _panel(record) == panel]
        for name, style in styles.items():
            points = sorted(
                (r["problem"]["seqlen_k"], r["tflops"], r["timing"]["spread"])
                for r in mine
                if _label(r) == name
            )
            if points:
                lengths, rates, spreads = zip(*points, strict=True)
                errors = [rate * spread / 2 for rate, spread in zip(rates, spreads, strict=True)]
                ax.errorbar(lengths, rates, yerr=errors, label=name, capsize=2, **style)
        lengths = sorted({record["problem"]["seqlen_k"] for record in mine})
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, map(short_length, lengths))
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set(title=panel, xlabel="keys", ylabel="TFLOP/s")
    for ax in axes[len(panels) :]:
        ax.remove()
    _legend(figure, axes[: len(panels)], _where(timed))
    return figure


def roofline(records: Sequence[Record], gpu: Gpu | None = None) -> Figure:
    """TFLOP/s against FLOPs per byte of memory traffic (q, k, v read once, out and lse written
    once), below the least of the peak rate and bandwidth times intensity; forward passes alone.

    Raises ValueError where nothing was timed, or the GPU's peak rates are not known.
    """
    timed = [r for r in _timed(records) if r["gb_per_second"]]
    if not timed:
        raise ValueError("no forward pass was timed: a roofline has nothing to show")
    device = timed[0]["environment"]["device"]
    gpu = gpu or find_gpu(device)
    if gpu is None:
        raise ValueError(f"no roofline: the peak rates of {device} are not known")
    figure, (ax,) = _subplots(1, 1)
    of = {name: [r for r in timed if _label(r) == name] for name in _styles(timed)}
    for name, style in _styles(timed).items():
        points = [(1e3 * r["tflops"] / r["gb_per_second"], r["tflops"]) for r in of[name]]
        ax.plot(*zip(*points, strict=True), label=name, **(style | {"linestyle": "none"}))
    ridge = 1e3 * gpu.tflops / gpu.gb_per_second
    intensities = [1e3 * r["tflops"] / r["gb_per_second"] for r in timed]
    least, most = min([ridge, *intensities]) / 2, max([ridge, *intensities]) * 2
    roof = [(x, min(gpu.tflops, gpu.gb_per_second * x / 1e3)) for x in (least, ridge, most)]
    ax.plot(*zip(*roof, strict=True), color="#444444", linewidth=2)
    above = {"textcoords": "offset points", "color": "#444444"}
    ax.annotate(f"{gpu.tflops:g} TFLOP/s", roof[-1], (0, 4), ha="right", **above)
    ax.annotate(f"{gpu.gb_per_second:,g} GB/s", roof[0], (10, 0), ha="left", **above)
    ax.set(xscale="log", yscale="log", title=f"roofline of {gpu.name}")
    ax.set(xlabel="FLOPs per byte", ylabel="TFLOP/s")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:,.6g}")
        axis.set_minor_formatter("")
    ax.yaxis.set_major_locator(require_matplotlib().ticker.LogLocator(subs=(1, 2, 5)))
    _legend(figure, [ax], _where(timed))
    return figure


def _timed(records: Iterable[Record]) -> list[Record]:
    timed = [record for record in records if record["timing"]]
    if not timed:
        raise ValueError("no contender was timed: a figure has nothing to show")
    return timed


def _panel(record: Record) -> str:
    problem = record["problem"]
    mask = "causal" if is_causal(record) else "full"
    one = "decoding" if problem["seqlen_q"] == 1 else record["what"]
    return f"{one}, d_head {problem['d_head']}, {mask}, {problem['dtype']}"


def _label(record: Record) -> str:
    return record["contender"]


def _styles(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(map(_label, records))
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
    facts = records[0]["environment"]
    parts = [facts["device"], f"torch {facts['torch']}"]
    if facts.get("cuda"):
        parts.append(f"CUDA {facts['cuda']}")
    return ", ".join([*parts, records[0]["time"][:10]])


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


def _subplots(rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    matplotlib = require_matplotlib()
    size = (_PANEL[0] * columns, _PANEL[1] * rows + 0.9)
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for ax in axes:
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


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
