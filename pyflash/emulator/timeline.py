"""The time line of one CTA of an SM90 kernel: what each warp does, and what it waits for.

    print(timeline.as_text(report))
    path.write_text(timeline.as_svg(report))

The emulator knows what depends on what, and not how long anything takes. Here each operation takes
the nominal time below, warps run as early as what they wait for lets them, and the tensor cores do
one MMA after another. So overlap, turns and waits show; the cycles predict nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from pyflash.ui.markup import element
from pyflash.ui.svg import THEME, XMLNS

if TYPE_CHECKING:
    from pyflash.emulator.report import Report

# Nominal cycles of a Hopper SM: 1024 FMAs of 16-bit operands a cycle, 4 exponentials a cycle for
# each quarter, and for loads a latency and a rate of L2.
_MMA_PER_COLUMN = 1.0 / 2  # of N, for 64 rows and a depth of 16
_EXPONENTIAL = 32.0 / 4  # of a warp
_LOAD_LATENCY = 600.0
_LOAD_BYTES = 64.0
_STEP = 10.0  # anything else

TENSOR_CORES = "tensor cores"
_WIDTH = 100  # characters


@dataclass(frozen=True, slots=True)
class Event:
    """What a warp does, in its order. a, b, c: see cute_kernels/emulator/timeline.h."""

    warp: int
    kind: str
    site: str
    a: int
    b: int
    c: int


@dataclass(frozen=True, slots=True)
class Span:
    row: str  # a role of warps, or the tensor cores
    kind: str  # "load", "mma", "exponentials" or "wait"
    start: float  # nominal cycles
    end: float
    what: str


class _Simulation:
    """Each step runs the warp that is furthest behind among those that can go on."""

    def __init__(self, report: Report) -> None:
        self.roles, self.mbarriers = report.roles, report.mbarriers
        self.queues: dict[int, deque[Event]] = defaultdict(deque)
        self.missing: Counter[tuple[str, int, int]] = Counter()  # arrivals and loads to come
        for event in _split_syncs(report.timeline):
            self.queues[event.warp].append(event)
            if key := _arrives_at(event):
                self.missing[key] += 1
        self.complete: dict[tuple[str, int, int], float] = defaultdict(float)  # when
        self.now: dict[int, float] = dict.fromkeys(self.queues, 0.0)
        self.uncommitted: dict[int, float] = {}  # when its MMAs end
        self.groups: dict[int, deque[float]] = defaultdict(deque)  # when those in flight end
        self.tensor_cores = 0.0
        self.spans: list[Span] = []

    def run(self) -> list[Span]:
        while ready := [w for w, queue in self.queues.items() if queue and self._can_run(queue[0])]:
            warp = min(ready, key=lambda w: (self.now[w], w))
            self._step(warp, self.queues[warp].popleft())
        return self.spans

    def _can_run(self, event: Event) -> bool:
        key = _waits_for(event)
        return key is None or self.missing[key] == 0

    def _step(self, warp: int, event: Event) -> None:
        now = self.now[warp]
        end = now + _STEP
        arrival = end
        if event.kind == "exponentials":
            end = now + _EXPONENTIAL * event.a
            self._add(warp, "exponentials", end, f"{event.a} exponentials a thread")
        elif event.kind == "load":
            arrival = end + _LOAD_LATENCY + event.c / _LOAD_BYTES
            what = f"{event.site}: {event.c} bytes for {self.mbarriers[event.a]}"
            self.spans.append(Span(self.roles[warp], "load", now, arrival, what))
        elif event.kind == "mma":
            end = now + 1
            start = max(now, self.tensor_cores)
            self.tensor_cores = start + _MMA_PER_COLUMN * event.a
            self.uncommitted[warp] = self.tensor_cores
            what = f"{event.site} of {self.roles[warp]}"
            self.spans.append(Span(TENSOR_CORES, "mma", start, self.tensor_cores, what))
        elif event.kind == "commit":
            self.groups[warp].append(self.uncommitted.pop(warp, now))
        elif event.kind == "mma_wait":
            end = now
            while len(self.groups[warp]) > event.a:
                end = max(end, self.groups[warp].popleft())
            self._add(warp, "wait", end, f"for its MMAs, at {event.site}")
        elif key := _waits_for(event):
            end = max(now, self.complete[key])
            self._add(warp, "wait", end, f"for {self._name(event)}, at {event.site}")
        if key := _arrives_at(event):
            self.missing[key] -= 1
            self.complete[key] = max(self.complete[key], arrival)
        self.now[warp] = max(self.now[warp], end)

    def _add(self, warp: int, kind: str, end: float, what: str) -> None:
        if end > self.now[warp]:
            self.spans.append(Span(self.roles[warp], kind, self.now[warp], end, what))

    def _name(self, event: Event) -> str:
        if event.kind == "wait":
            return f"phase {event.b} of {self.mbarriers[event.a]}"
        return f"named barrier {event.a}" if event.a else "sync_threads"


def _split_syncs(events: Sequence[Event]) -> Iterator[Event]:
    """Arrives, then waits."""
    for event in events:
        if event.kind == "named_sync":
            yield replace(event, kind="named_arrive")
            yield replace(event, kind="named_wait")
        else:
            yield event


def _arrives_at(event: Event) -> tuple[str, int, int] | None:
    if event.kind in ("arrive", "load"):
        return "mbarrier", event.a, event.b
    return ("named", event.a, event.b) if event.kind == "named_arrive" else None


def _waits_for(event: Event) -> tuple[str, int, int] | None:
    if event.kind == "wait":
        return "mbarrier", event.a, event.b
    return ("named", event.a, event.b) if event.kind == "named_wait" else None


def spans(report: Report) -> list[Span]:
    """What the first CTA did, in nominal cycles; [] for kernels without asynchronous MMAs."""
    return _Simulation(report).run()


_LETTERS = {"load": "-", "wait": ".", "exponentials": "s"}


def _rows(all_spans: Sequence[Span]) -> dict[str, list[Span]]:
    rows: dict[str, list[Span]] = defaultdict(list)
    for span in all_spans:
        rows[span.row].append(span)
    return dict(sorted(rows.items(), key=lambda row: (row[0] == TENSOR_CORES, row[0][0] == "c")))


def as_text(report: Report, width: int = _WIDTH) -> str:
    """A row for each role and one for the tensor cores. s: exponentials, -: loads in flight, .:
    waits, a digit: MMAs of that consumer."""
    all_spans = spans(report)
    if not all_spans:
        return ""
    total = max(span.end for span in all_spans)
    lines = [
        f"time line of the first CTA, {total:,.0f} nominal cycles in dependency order",
        "s: exponentials, -: loads, .: waits, a digit: MMAs of that consumer",
    ]
    for row, members in _rows(all_spans).items():
        line = [" "] * width
        for span in members:
            first = int(span.start / total * width)
            for i in range(first, min(max(int(span.end / total * width), first + 1), width)):
                line[i] = span.what[-1] if span.kind == "mma" else _LETTERS[span.kind]
        lines.append(f"{row:<12} {''.join(line)}".rstrip())
    return "\n".join(lines)


_COLOURS = {"load": "#8fb8de", "wait": "#dddddd", "exponentials": "#f2b872"}
_MMA_COLOURS = ("#3f8f5f", "#8f5fa8", "#b8504a", "#4a7ab8")
_ROW, _BAR, _LEFT, _TOP = 28, 20, 110, 40


def as_svg(report: Report, width: int = 1400) -> Markup:
    """The same as an SVG; each bar has a title that says what it is."""
    all_spans = spans(report)
    rows = _rows(all_spans)
    total = max((span.end for span in all_spans), default=1.0)
    height = _TOP + _ROW * len(rows) + 10
    title = f"{report.config}: first CTA, {total:,.0f} nominal cycles in dependency order"
    parts = [element("style", THEME), element("text", title, x=4, y=18, class_="t")]
    scale = (width - _LEFT - 10) / total
    for i, (row, members) in enumerate(rows.items()):
        y = _TOP + i * _ROW
        parts.append(element("text", row, x=4, y=y + 14, class_="t"))
        parts += [_bar(span, y, scale) for span in members]
    inside = Markup("\n").join(["", *parts, ""])
    return element("svg", inside, xmlns=XMLNS, width=width, height=height,
                   font_family="sans-serif", font_size=12) + "\n"  # fmt: skip


def _bar(span: Span, y: int, scale: float) -> Markup:
    return element(
        "rect",
        element("title", span.what),
        x=f"{_LEFT + span.start * scale:.1f}",
        y=y,
        height=_BAR,
        width=f"{max((span.end - span.start) * scale, 0.5):.1f}",
        fill=_COLOURS.get(span.kind) or _MMA_COLOURS[int(span.what[-1])],
    )
