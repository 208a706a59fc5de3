"""The report of an emulated kernel, as values, JSON and text.

docs/concepts/emulator.md says what each number and each kind of finding means.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from pyflash.emulator.timeline import Event
from pyflash.emulator.traffic import GlobalTraffic, SharedTraffic, Traffic


class KernelError(AssertionError):
    """A kernel has a fault, whether or not its results are right."""


@dataclass(frozen=True, slots=True)
class Access:
    """An access of one thread in a finding: where, by whom, and what it did."""

    site: str
    thread: int  # in its CTA
    what: str  # "read", "write", "cp.async", or what else the thread was at
    rank: int | None = None  # of its CTA in the cluster; None: each CTA is for itself

    def __str__(self) -> str:
        cta = "" if self.rank is None else f" of rank {self.rank}"
        return f"{self.what or 'something'} at {self.site} by thread {self.thread}{cta}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong: the first example, and how often it happened between the same two sites."""

    kind: str
    memory: str  # "shared", the name of a global tensor, or "" where no memory is concerned
    offset: int  # bytes from its start
    bytes: int
    access: Access | None
    other: Access | None
    detail: str
    cta: int
    count: int
    kernel: str = ""  # of several that run in a row, which

    @property
    def sites(self) -> set[str]:
        return {access.site for access in (self.access, self.other) if access}

    def __str__(self) -> str:
        place = f"bytes {self.offset} to {self.offset + self.bytes} of {self.memory}"
        sentence = _SENTENCES[self.kind].format(
            access=self.access,
            other=self.other,
            place=place,
            offset=self.offset,
            memory=self.memory or "no tensor",
            detail=self.detail,
        )
        times = f", {self.count} times" if self.count > 1 else ""
        kernel = f"{self.kernel}, " if self.kernel else ""
        return f"{self.kind}: {sentence} ({kernel}CTA {self.cta}{times})"


_SENTENCES = {
    "race": "{access} and {other} touch {place} with no barrier between",
    "in_flight_read": "{access} of {place}, which {other} has in flight",
    "uninitialised_read": "{access} of {place}, which nothing has written",
    "out_of_bounds": "{access} of {place} is outside: {detail}",
    "misaligned": "{access} of {place} is not aligned to its size",
    "copy_never_awaited": "{access} to {place} was never waited for",
    "write_to_input": "{access} to {place}, which is an input",
    "written_twice": "{access} to {place}, which another thread wrote before",
    "not_written": "{place} was never written: {detail}",
    "divergence": "{detail} ({access}; {other})",
    "unhooked_access": "{access}, byte {offset} of {memory}, {detail}",
    "missing_proxy_fence": "{access} and {other} touch {place} with no fence.proxy.async between",
    "register_in_flight": "{access} of {memory}, which {other} has in flight",
    "missing_mma_fence": "{access} of {memory}, {detail}",
    "mma_never_awaited": "{access} was never waited for",
    "wrong_expect_tx": "{memory}: {detail} ({access})",
    "phase_never_awaited": "{memory}: {detail} ({access})",
    "wrong_phase": "{access} at {memory}: {detail}",
    "too_many_arrivals": "{access} at {memory}: {detail}",
    "barrier_not_initialised": "{memory} was never initialised ({access})",
    "barrier_not_visible": "{memory}: {detail} ({access})",
    "arrivals_left": "{detail} when the CTA ends ({access})",
    "outside_tile": "{access} of {place}: {detail}",
    "register_budget": "{access}: {detail}",
    "tag_left": "{access} in {memory} that the next launch would take for its own: {detail}",
    "unordered_reduction": "{access} in {memory} before {other} is known to be complete",
    "cta_ended": "{access} of {place}, which may have ended: {detail}",
    "before_previous_kernel_ended": "{access} before the wait for the previous kernel",
    "ended_before_previous_kernel": "the kernel did not wait for the one that it ran beside",
    "deadlock": "{detail}",
    "unsupported": "{detail} ({access})",
}


@dataclass(frozen=True, slots=True)
class Counts:
    """How often each operation ran, over all CTAs."""

    # Counted by warps.
    mma: int
    ldmatrix: int
    shuffles: int
    warp_syncs: int
    # Counted by CTAs.
    barriers: int
    # Counted by threads.
    cp_async: int
    cp_async_commits: int
    cp_async_waits: int
    exponentials: int
    reciprocals: int
    # Counted by warpgroups: WGMMAs by where A is, in shared memory (ss) or registers (rs).
    wgmma_ss: int = 0
    wgmma_rs: int = 0
    wgmma_flops_ss: int = 0
    wgmma_flops_rs: int = 0
    # Counted by warps.
    wgmma_fences: int = 0
    wgmma_commits: int = 0
    wgmma_waits: int = 0
    tma_boxes: int = 0
    tma_bytes: int = 0  # into shared memory, zeros outside a tensor among them
    tma_stores: int = 0  # boxes, too
    tma_stored_bytes: int = 0  # out of shared memory
    # Counted by threads.
    mbarrier_arrivals: int = 0
    mbarrier_expects: int = 0  # arrivals that announce bytes
    mbarrier_waits: int = 0
    proxy_fences: int = 0
    # Counted by warps.
    named_syncs: int = 0
    named_arrivals: int = 0
    stmatrix: int = 0
    cluster_syncs: int = 0
    # Counted by threads: loads by rank, and the bytes that came from other CTAs' shared memory.
    cluster_loads: int = 0
    cluster_bytes: int = 0
    exponential_instructions: int = 0  # of warps: the exponentials of lanes put together


@dataclass(frozen=True, slots=True)
class Report:
    """What a kernel did: findings, counts of operations, and the traffic of each site."""

    config: str  # short form
    problem: dict[str, Any]  # arguments and extents
    order: str  # in which warps and lanes ran
    seed: int
    n_ctas: int
    n_threads: int  # per CTA
    smem_bytes: int  # per CTA
    seconds: float
    completed: bool  # False: a CTA could not go on, and the outputs are not whole
    sites: dict[str, dict[str, Traffic]]  # by site, then "shared_load", "global_store" and so on
    counts: Counts
    findings: tuple[Finding, ...]
    cluster: int = 1  # CTAs that run together
    # What the first CTA did, in a kernel whose warps have roles; else empty. See `timeline`.
    roles: tuple[str, ...] = ()  # by warp
    mbarriers: tuple[str, ...] = ()
    timeline: tuple[Event, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def check(self) -> None:
        """Raises KernelError with every finding."""
        if self.findings:
            lines = [f"{self.config}, order {self.order}, seed {self.seed}:"]
            raise KernelError("\n".join([*lines, *map(str, self.findings)]))

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(dataclasses.asdict(self), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of `to_json`."""
        return cls(**{**(values := json.loads(text)), **parse(values)})

    def __str__(self) -> str:
        from pyflash.emulator.table import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        """The time line of a kernel that has one, and the tables."""
        from pyflash.emulator.timeline import as_svg
        from pyflash.ui.html import notebook, scrolling
        from pyflash.ui.markup import element, joined

        drawn = [scrolling(as_svg(self), "time line")] if self.timeline else []
        return notebook(joined(*drawn, scrolling(element("pre", str(self)), "what it did")))


def parse(values: dict[str, Any]) -> dict[str, Any]:
    """What a decoded JSON object has of a report's structures, as the values they stand for."""
    return {
        "sites": {
            site: {path: _traffic(path, numbers) for path, numbers in paths.items()}
            for site, paths in values["sites"].items()
        },
        "counts": Counts(**values["counts"]),
        "findings": tuple(
            Finding(**{**f, "access": _access(f["access"]), "other": _access(f["other"])})
            for f in values["findings"]
        ),
        "roles": tuple(values["roles"]),
        "mbarriers": tuple(values["mbarriers"]),
        "timeline": tuple(
            Event(**event) if isinstance(event, dict) else Event(*event)
            for event in values["timeline"]
        ),
    }


def _traffic(path: str, numbers: dict[str, Any]) -> Traffic:
    return SharedTraffic(**numbers) if path.startswith("shared") else GlobalTraffic(**numbers)


def _access(values: dict[str, Any] | None) -> Access | None:
    return Access(**values) if values else None
