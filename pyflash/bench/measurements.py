"""Groups records that belong together, and names what differs between groups.

A measurement is what one run measured of one problem: figures are compared within it. A series is
measurements that differ in length alone: a row of a table, a panel of a figure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyflash.bench.records import Record
from pyflash.config import FORWARD
from pyflash.op.options import DEFAULTS, OPTIONS

Facts = dict[str, str]  # what was measured and where: words by name, "" where nothing is to say

# In the order of a problem's title.
_PROBLEM = ("dtype", "batch", "lengths", "heads", "heads_kv", "d_head", "variant", "rest")
_NAMED = ("dtype", "batch", "seqlen_q", "seqlen_k", "heads_q", "heads_kv", "d_head", "device")


@dataclass(frozen=True)
class Measurement:
    facts: Facts
    records: list[Record]

    @property
    def problem(self) -> Mapping[str, Any]:
        return self.records[0]["problem"]

    def of(self, contender: str) -> Record | None:
        return next((r for r in self.records if r["contender"] == contender), None)


@dataclass(frozen=True)
class Series:
    facts: Facts
    of_length: dict[int, Measurement]  # by the number of keys

    @property
    def records(self) -> list[Record]:
        return [record for one in self.of_length.values() for record in one.records]


def measurements(records: Iterable[Record]) -> list[Measurement]:
    """In the order of their first records. A problem that was measured again has a run of its own,
    numbered from 2: a contender comes once in a measurement."""
    runs: dict[frozenset, dict[tuple[str, int], list[Record]]] = defaultdict(dict)
    seen: Counter[tuple[frozenset, str, str]] = Counter()
    for record in records:
        key = frozenset(facts_of(record).items())
        times = (key, record["time"], record["contender"])
        seen[times] += 1
        runs[key].setdefault((record["time"], seen[times]), []).append(record)
    return [
        Measurement(facts_of(found[0]) | {"run": f"run {n}" if n > 1 else ""}, found)
        for of_runs in runs.values()
        for n, (_, found) in enumerate(sorted(of_runs.items(), key=lambda run: run[0]), 1)
    ]


def titles(of: Sequence[Measurement]) -> list[str]:
    """Name the problem of each, and what else tells it from another of that problem."""
    named = [
        one.facts | {"title": f"{one.facts['what']}: {_joined(one.facts, _PROBLEM)}"} for one in of
    ]
    return labels(named, ["title"])


def labels(of: Sequence[Mapping[str, str]], said: Sequence[str]) -> list[str]:
    """The words of the names in `said`, and of those in which one differs from others that say the
    same."""
    alike: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for facts in of:
        alike[_joined(facts, said)].append(facts)
    return [_joined(facts, [*said, *differing(alike[_joined(facts, said)], said)]) for facts in of]


def differing(of: Sequence[Mapping[str, str]], but: Iterable[str] = ()) -> list[str]:
    """The names whose words are not the same in all, without those in `but`."""
    names = dict.fromkeys(name for facts in of for name in facts if name not in but)
    return [name for name in names if len({facts.get(name, "") for facts in of}) > 1]


def series(records: Iterable[Record]) -> list[Series]:
    """A series has each length once. Its measurements share the batch or the number of tokens
    (batch * keys), whichever joins more of them, and seqlen_q, which may be that of the keys."""
    groups: dict[frozenset, list[Measurement]] = defaultdict(list)
    for one in measurements(records):
        groups[frozenset(_along_lengths(one).items())].append(one)
    return [
        Series(_along_lengths(members[0]) | {"batch": size}, _by_length(members))
        for group in groups.values()
        for size, members in _by_size(group).items()
    ]


def places(records: Sequence[Record]) -> str:
    """The devices that they were measured on."""
    return " and ".join(dict.fromkeys(record["environment"]["device"] for record in records))


def dates(records: Sequence[Record]) -> str:
    """The first and the last day that they were measured on."""
    days = [record["time"][:10] for record in records]
    return " to ".join(dict.fromkeys((min(days), max(days))))


def mask(problem: Mapping[str, Any]) -> str:
    """Returns what --mask calls it; "" for windows, variants and the like, which name
    themselves."""
    if problem.get("variant"):
        return ""
    said = _said_options(problem["options"])
    if "causal" in said:
        return "causal"
    return "" if any(OPTIONS[name].is_positional for name in OPTIONS & said.keys()) else "full"


def facts_of(record: Record) -> Facts:
    """Returns the words by name, without empty ones. A record without a stamp has only those of its
    problem."""
    environment = {
        f"environment {name}": _words("" if name == "device" else name, value)
        for name, value in record.get("environment", {}).items()
    }
    facts = {"what": record["what"]} | _problem_facts(record["problem"]) | environment
    return {name: words for name, words in facts.items() if words}


def _problem_facts(problem: Mapping[str, Any]) -> Facts:
    q, k = problem["seqlen_q"], problem["seqlen_k"]
    options = {n: w for n, w in _said_options(problem["options"]).items() if n != "causal"}
    named = (*_NAMED, "options", "variant")
    others = [name for name in problem if name not in named and problem[name]]
    said = (mask(problem), problem.get("variant"), *options.values())
    return {
        "dtype": problem["dtype"],
        "batch": f"batch {problem['batch']}",
        "lengths": f"seqlen {q}" if q == k else f"seqlen_q {q}, seqlen_k {k}",
        "heads": f"heads {problem['heads_q']}",
        "heads_kv": f"heads_kv {problem['heads_kv']}",
        "d_head": f"d_head {problem['d_head']}",
        "variant": ", ".join(filter(None, said)),
        "rest": ", ".join(_words(name, problem[name]) for name in others),
        "device": f"on {problem['device']}",
    }


def _said_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Returns the words of the options that differ from their defaults."""
    return {
        name: _words(name, value) for name, value in options.items() if value != DEFAULTS.get(name)
    }


def _words(name: str, value: Any) -> str:
    if value is None:
        return ""
    return name if value is True else f"{name} {value}".strip()


def _along_lengths(one: Measurement) -> Facts:
    """Lists what a series shares, its batch aside."""
    q, k = one.problem["seqlen_q"], one.problem["seqlen_k"]
    facts = {name: words for name, words in one.facts.items() if name not in ("batch", "lengths")}
    if q == 1 and facts["what"] == FORWARD.name:
        return facts | {"what": "decoding"}
    return facts | {"seqlen_q": "" if q == k else f"seqlen_q {q}"}


def _by_size(group: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Splits by batch, by number of tokens, or not at all: the fewest parts win."""
    batches = ", ".join(dict.fromkeys(str(one.problem["batch"]) for one in group))
    ways: list[Callable[[Mapping[str, Any]], str]] = [
        lambda problem: f"batch {problem['batch']}",
        lambda problem: f"{problem['batch'] * problem['seqlen_k']} tokens",
    ]
    if len(_by_length(group)) == len(group):
        ways.append(lambda _: f"batch {batches}")
    return min((_parts(group, way) for way in ways), key=len)


def _parts(
    group: Sequence[Measurement], words: Callable[[Mapping[str, Any]], str]
) -> dict[str, list[Measurement]]:
    parts: dict[str, list[Measurement]] = defaultdict(list)
    for one in group:
        parts[words(one.problem)].append(one)
    return parts


def _by_length(group: Sequence[Measurement]) -> dict[int, Measurement]:
    return {one.problem["seqlen_k"]: one for one in group}


def _joined(facts: Mapping[str, str], names: Iterable[str]) -> str:
    return ", ".join(filter(None, (facts.get(name, "") for name in names)))
