"""A variant as C++: a struct for the host and the device.

What is uniform, of a row, of a column, and of a distance is computed once for each, into the
structs Uniform, Row, Column and Distance, or read from tables that `prepare` filled before; `score`
and `counts` have the rest, of one pair. `tile` judges a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyflash.variant.cpp_bounds import tile_lines
from pyflash.variant.cpp_expressions import TYPES, enclosed, floats_of, statements
from pyflash.variant.derivative import ONE, derivative
from pyflash.variant.expr import SCORE, TRUE, Node, Param, index
from pyflash.variant.interval import MAX_POSITION
from pyflash.variant.line import line_of
from pyflash.variant.stages import (
    ALIGNED,
    APART,
    MOST_APART,
    Stage,
    Stages,
    makes_floats_of_positions,
    with_distances,
    with_inverses,
    with_sums_apart,
)
from pyflash.variant.summed import Summed, loads_of
from pyflash.variant.value import Variant
from pyflash.variant.walk import postorder

HEADERS = (
    "cute_kernels/variant/arithmetic.h",
    "cute_kernels/variant/prepared.h",
    "cute_kernels/variant/streams.h",
    "cute_kernels/variant/sums.h",
    "cute_kernels/variant/table.h",
)
_SCOPES = {
    Stage.UNIFORM: "uniform",
    Stage.ROW: "row",
    Stage.COLUMN: "column",
    Stage.DISTANCE: "distance",
}
_OPERANDS = "Params const& params, Lengths const& lengths"
# What functions of a stage take beside what all take.
_POSITIONS = {
    Stage.UNIFORM: "",
    Stage.ROW: ", int q",
    Stage.COLUMN: ", int first, int offset",
    Stage.DISTANCE: ", int first_apart, int offset",
}
# Positions as the place of the first one of a thread, and what the compiler knows to add to it.
_OPENING = {
    Stage.COLUMN: ["int const k = first + offset;"],
    Stage.DISTANCE: ["int const apart = first_apart + offset;"],
}
# The same of a thread that has many rows, as for gradients.
_ROWS = ", int first_query, int offset"
_OPENING_OF_ROWS = ["int const q = first_query + offset;"]
# What the score function takes beside what functions of pairs take.
_SCORED = ", float raw, float scale"
_ALIGNED = "(apart - lengths.k_len + lengths.q_len)"


def struct_name(variant: Variant) -> str:
    return f"Variant_{variant.key}"


def header_of(variant: Variant) -> str:
    """A header with the struct alone."""
    includes = "\n".join(f'#include "{name}"' for name in HEADERS)
    return (
        f"#pragma once\n\n#include <cstdint>\n\n{includes}\n\nnamespace pyflash::variant {{\n\n"
        f"{struct_of(variant)}\n\n}}  // namespace pyflash::variant\n"
    )


def struct_of(variant: Variant) -> str:
    """The struct of the normal form; its text and the names of parameters are in comments."""
    return _struct_of(variant, struct_name(variant), has_slope=False)


def gradient_struct_name(variant: Variant | Summed) -> str:
    return f"Gradient_{variant.key}"


def gradient_struct_of(variant: Variant | Summed) -> str:
    """The struct of the normal form for kernels of gradients, which have keys as rows: with the
    slope of the score function beside it, and with its derivatives by what is summed. Raises
    ValueError where these have too many nodes."""
    name = gradient_struct_name(variant)
    if isinstance(variant, Summed):
        return _struct_of(variant.variant, name, has_slope=True, places=variant.places)
    return _struct_of(variant, name, has_slope=True)


def stages_of(variant: Variant) -> Stages:
    """The stages of a forward kernel's scores."""
    score, mask = variant.normal.score, variant.normal.mask
    by_sums = with_sums_apart(with_distances(score))
    return Stages(with_inverses(by_sums), with_inverses(with_distances(mask)))


def _struct_of(variant: Variant, name: str, has_slope: bool, places: tuple[int, ...] = ()) -> str:
    normal = variant.normal
    own = [param for param in normal.params if param.rank is not None]
    summed = {own[place]: place for place in places}
    loads = loads_of(normal.score, list(summed))
    scores = [normal.score, *([derivative(normal.score)] if has_slope else []), *loads.values()]
    scores += [arg for load in loads for arg in load.args]
    by_distances = [with_distances(root) for root in scores]
    apart = [with_sums_apart(root) for root in by_distances]
    score, *rest = (with_inverses(root) for root in apart)
    slope = rest.pop(0) if has_slope else None
    mask = with_inverses(with_distances(normal.mask))
    emitter = _Emitter(Stages(score, mask, slope, tuple(rest)))
    parts = iter(rest)
    derivatives = [next(parts) for _ in loads]
    sums = [
        _Sum(load.data, summed[load.data], by_load, tuple(next(parts) for _ in load.args))
        for load, by_load in zip(loads, derivatives, strict=True)
    ]
    lines = [f"// {variant}", f"struct {name} {{", *_facts(normal, emitter.stages)]
    has_floats = apart != by_distances or makes_floats_of_positions(*apart, mask)
    most = MOST_APART if has_floats else MAX_POSITION
    lines += [f"  static constexpr int kMostPositions = {most};  // of a sequence"]
    captured = zip(normal.params, variant.captured, strict=True)
    members = [(_param_type(p), p.name, own.name) for p, own in captured]
    members += [(f"Sums<{p.rank}>", _sums(p), "") for p in summed]
    lines += _struct("Params", members)
    lines += ["", *_params_of(normal.params, summed)]
    lines += ["", *emitter.preparation()]
    for stage, scope in _SCOPES.items():
        lines += ["", *_struct(scope.capitalize(), emitter.members(stage))]
    for stage in _SCOPES:
        lines += ["", *emitter.stage(stage)]
    lines += ["", *emitter.streaming()]
    lines += ["", *(emitter.score_and_slope() if has_slope else emitter.score())]
    lines += [] if has_slope else ["", *emitter.line()]
    lines += emitter.sums(sums)
    lines += ["", "  // Whether the mask shows a pair."]
    lines += [*emitter.of_pair("bool counts", [emitter.stages.mask], "", _only)]
    lines += ["", *tile_lines(normal.mask)]
    return "\n".join([*lines, "};"])


def _facts(normal: Variant, stages: Stages) -> list[str]:
    """What kernels ask of a variant before they are compiled."""
    nodes = list(postorder(normal.mask))
    read = {node.data for node in nodes if node.op == "index"}
    loads = [node for node in nodes if node.op == "load" and node.data.rank is not None]
    places = {node.data for load in loads for node in postorder(load) if node.op == "index"}
    facts = {
        "kHasMask": normal.mask != TRUE,
        "kHasScore": normal.score != SCORE,
        "kMaskReadsBatch": "b" in read,
        "kMaskReadsHead": "h" in read,
        "kMaskReadsTensors": bool(loads),
        "kMaskReadsTensorsByPosition": not places.isdisjoint({"q", "k"}),
        "kMaskIsDear": stages.mask_is_dear,
    }
    return [
        f"  static constexpr bool {name} = {str(fact).lower()};" for name, fact in facts.items()
    ]


def _params_of(params: Iterable[Param], summed: Mapping[Param, int]) -> list[str]:
    """The function that makes Params, for host code: of cute_kernels/variant/arguments.h."""
    values = []
    places = {"table": 0, "real": 0, "integer": 0}
    for param in params:
        kind = TYPES[param.kind.computed]
        getter = "table" if param.rank is not None else "real" if kind == "float" else "integer"
        text = {
            "table": f"template table<{TYPES[param.kind]}, {param.rank}>",
            "real": "real",
            "integer": f"template integer<{kind}>",
        }[getter]
        values.append(f"arguments.{text}({places[getter]})")
        places[getter] += 1
    values += [f"arguments.template sums<{p.rank}>({place})" for p, place in summed.items()]
    return [
        "  template <class Arguments>",
        "  static Params params_of([[maybe_unused]] Arguments const& arguments) {",
        f"    return Params{{{', '.join(values)}}};",
        "  }",
    ]


def _param_type(param: Param) -> str:
    kind = TYPES[param.kind]
    return f"Table<{kind}, {param.rank}>" if param.rank is not None else TYPES[param.kind.computed]


def _sums(param: Param) -> str:
    return f"{param.name}_sums"


@dataclass(frozen=True)
class _Sum:
    """What gradients of a load are made of."""

    param: Param
    place: int  # among the tensors
    derivative: Node
    indices: tuple[Node, ...]


def _struct(name: str, members: Iterable[tuple[str, str, str]]) -> list[str]:
    lines = [
        f"    {kind} {member};{f'  // {note}' if note else ''}" for kind, member, note in members
    ]
    return [f"  struct {name} {{", *lines, "  };"] if lines else [f"  struct {name} {{}};"]


@dataclass
class _Emitter:
    """The parts of a score function and a mask by stage, and the names of the fields that pairs
    read."""

    stages: Stages

    def __post_init__(self) -> None:
        fields = self.stages.fields
        self.names = {
            node: f"{scope}.{scope[0]}{i}"
            for stage, scope in _SCOPES.items()
            for i, node in enumerate(fields[stage])
        }
        streams = self.stages.streams
        self.lines = {node: f"row.line{i}" for i, node in enumerate(streams)}
        kept = [] if self.has_many_rows else streams
        self.ahead = {node: f"row.element{i}" for i, node in enumerate(kept)}

    @property
    def has_many_rows(self) -> bool:
        """Whether a thread has many rows and few columns: where it computes gradients."""
        return self.stages.slope is not None

    def members(self, stage: Stage) -> list[tuple[str, str, str]]:
        found = [
            (TYPES[node.kind], _member(self.names[node]), "") for node in self.stages.fields[stage]
        ]
        if stage is Stage.ROW:
            found += [
                (f"{TYPES[node.data.kind]} const*", _member(name), "")
                for node, name in self.lines.items()
            ]
            found += [
                (TYPES[node.data.kind], _member(name), "of the pair, where it is loaded ahead")
                for node, name in self.ahead.items()
            ]
        return found

    def stage(self, stage: Stage) -> list[str]:
        """The function that computes the fields of a stage."""
        scope = _SCOPES[stage]
        is_uniform = stage is Stage.UNIFORM
        before = "" if is_uniform else "Prepared const& prepared, Uniform const& uniform, "
        wanted = self.stages.fields[stage]
        known = {} if is_uniform else self._names_of(Stage.UNIFORM)
        known |= {node: self._read(node, stage) for node in wanted if node in self.stages.prepared}
        known |= _positions(stage)
        roots = list(wanted)
        if stage is Stage.ROW:
            streams = self.stages.streams
            roots += [arg for node in streams for arg in node.args if arg != index("k")]
        lines, texts = statements(roots, known, floats_of(stage, self._names_of(Stage.UNIFORM)))
        values, rest = texts[: len(wanted)], iter(texts[len(wanted) :])
        if stage is Stage.ROW:
            for node in self.stages.streams:
                others = ", ".join(next(rest) for arg in node.args if arg != index("k"))
                axis = node.args.index(index("k"))
                values.append(f"params.{node.data.name}.template line<{axis}>({others})")
            values += ["{}" for _ in self.ahead]
        has_rows = stage is Stage.ROW and self.has_many_rows
        positions = _ROWS if has_rows else _POSITIONS[stage]
        opening = _OPENING_OF_ROWS if has_rows else _OPENING.get(stage, [])
        opening = [f"    [[maybe_unused]] {line}" for line in opening]
        return [
            f"  static PYFLASH_HOST_DEVICE {scope.capitalize()} {scope}(",
            f"      {_OPERANDS}, {before}int b, int h{positions}) {{",
            *(opening if values else []),
            *lines,
            f"    return {{{', '.join(values)}}};",
            "  }",
        ]

    def _names_of(self, stage: Stage) -> dict[Node, str]:
        return {node: self.names[node] for node in self.stages.fields[stage]}

    def _read(self, node: Node, stage: Stage) -> str:
        place, kind = f"prepared.table{self.stages.prepared.index(node)}", TYPES[node.kind]
        if stage is Stage.COLUMN and not self.has_many_rows:
            return f"prepared_beside<{kind}>({place} + first, offset)"
        if stage is Stage.ROW and self.has_many_rows:
            return f"prepared_beside<{kind}>({place} + first_query, offset)"
        at = {Stage.ROW: "q", Stage.COLUMN: "first + offset"}.get(stage, "first_apart + offset")
        if _along(node) == "aligned":
            at = "(first_apart - lengths.k_len + lengths.q_len) + offset"
        return f"prepared_at<{kind}>({place} + {at})"

    def preparation(self) -> list[str]:
        """The fields that are read from tables, and what fills these."""
        prepared = self.stages.prepared
        lines = [f"  static constexpr int kPrepared = {len(prepared)};"]
        members = [("int const*", f"table{i}", "") for i in range(len(prepared))]
        lines += _struct("Prepared", members)
        tables = ", ".join(f"tables.of({i}, b, h)" for i in range(len(prepared)))
        lines += [
            "  template <class Tables>",
            "  static PYFLASH_HOST_DEVICE Prepared prepared([[maybe_unused]] Tables const& tables,",
            "                                               int b, int h) {",
            f"    return {{{tables}}};",
            "  }",
            "  static PYFLASH_HOST_DEVICE constexpr PreparedField prepared_field(int i) {",
            *(f"    if (i == {i}) return {_prepared_field(n)};" for i, n in enumerate(prepared)),
            "    return {};",
            "  }",
            "  static PYFLASH_HOST_DEVICE int prepare(",
            f"      int i, {_OPERANDS}, int b, int h, int at) {{",
        ]
        for i, node in enumerate(prepared):
            along = _along(node)
            position = {"query": index("q"), "key": index("k"), "apart": APART, "aligned": ALIGNED}
            known = {position[along]: "at"}
            if along == "apart":
                known[ALIGNED] = "(at - lengths.k_len + lengths.q_len)"
            before, (text,) = statements([node], known)
            before = [f"  {line}" for line in before]
            lines += [f"    if (i == {i}) {{", *before, f"      return to_prepared({text});"]
            lines += ["    }"]
        return [*lines, "    return 0;", "  }"]

    def streaming(self) -> list[str]:
        """Whether loads of pairs of a block are of neighbours, and what loads them ahead."""

        def asked(call: str) -> list[str]:
            axes = [(n.data.name, n.args.index(index("k"))) for n in self.stages.streams]
            return [f"params.{p}.template {call.format(axis)}" for p, axis in axes]

        neighbours = asked("is_streamed<{}>(first, count)")
        lines = [
            f"  static constexpr bool kStreams = {str(bool(neighbours)).lower()};",
            "  static PYFLASH_HOST_DEVICE bool is_streamed([[maybe_unused]] Params const& params,",
            "                                              int first, int count) {",
            f"    return {' && '.join(neighbours) or 'false'};",
            "  }",
        ]
        if self.has_many_rows:
            return lines
        types = ", ".join(TYPES[node.data.kind] for node in self.ahead)
        lines += [f"  using Streams = std::tuple<{types}>;"]
        for name, root in (("Score", self.stages.score), ("Mask", self.stages.mask)):
            nodes = set(postorder(root))
            read = sum(1 << i for i, node in enumerate(self.ahead) if node in nodes)
            lines += [f"  static constexpr StreamSet kStreamsOf{name} = {read};"]
        mask = self.stages.mask
        bools = self.stages.streams.index(mask) if mask in self.stages.streams else -1
        lines += [f"  static constexpr int kBoolsOfMask = {bools};  // a stream, or -1"]
        if not self.ahead:
            return lines
        parts = {
            "int copied_until(Params const& params)": asked("copied_until<{}>()"),
            "auto line(Row const& row)": list(self.lines.values()),
            "auto& element(Row& row)": list(self.ahead.values()),
        }
        for signature, texts in parts.items():
            lines += [
                "  template <int kStream>",
                f"  static PYFLASH_HOST_DEVICE {signature} {{",
                *(f"    if constexpr (kStream == {i}) return {x};" for i, x in enumerate(texts)),
                "  }",
            ]
        return lines

    def score(self) -> list[str]:
        """The score function; `raw` is to be scaled first."""
        return self._score("float score", [], _only)

    def line(self) -> list[str]:
        """Whether the score function adds a line to the score, its slope, and what it is at a
        pair."""
        line = line_of(self.stages)
        lines = [f"  static constexpr bool kAddsLine = {str(line is not None).lower()};"]
        if line is None:
            return lines
        sign = "-" if line.is_subtracted else ""
        before, (slope,) = statements([line.slope], self._names_of(Stage.UNIFORM))
        field = self.names[line.value]
        stage = self.stages.of[line.value]
        at = {Stage.COLUMN: "first, offset", Stage.DISTANCE: "first - q, offset"}[stage]
        computed = (
            f"{_SCOPES[stage]}(params, lengths, prepared, uniform, b, h, {at}).{_member(field)}"
        )
        return [
            *lines,
            "  static PYFLASH_HOST_DEVICE float slope_of_line(",
            f"      {_OPERANDS}, Uniform const& uniform, int b, int h) {{",
            *before,
            f"    return {sign}{enclosed(slope)};",
            "  }",
            "  static PYFLASH_HOST_DEVICE float added_line(",
            f"      {_OPERANDS}, Prepared const& prepared, Uniform const& uniform, int b, int h,",
            "      int q, int first, int offset) {",
            f"    return {sign}{computed};",
            "  }",
        ]

    def score_and_slope(self) -> list[str]:
        """The score function and its slope by the scaled score."""
        slope = self.stages.slope
        assert slope is not None
        facts = f"  static constexpr bool kHasSlope = {str(slope != ONE).lower()};"
        both = self._score("ScoreAndSlope score_and_slope", [slope], "{{{}, {}}}".format)
        return [facts, *both]

    def sums(self, sums: Sequence[_Sum]) -> list[str]:
        """The functions `derivative`, of the score by each load, and `place`, where the sum of its
        gradients is."""
        if not sums:
            return []
        reads_score = any(SCORE in postorder(one.derivative) for one in sums)
        lines = [
            "",
            f"  static constexpr int kSums = {len(sums)};",
            f"  static constexpr bool kSumsReadScore = {str(reads_score).lower()};",
            "  static PYFLASH_HOST_DEVICE constexpr SummedOver summed_over(int i) {",
            *(f"    if (i == {i}) return {self._summed_over(x)};" for i, x in enumerate(sums)),
            "    return SummedOver::nothing;",
            "  }",
        ]
        opening = ["    [[maybe_unused]] float const s = raw * scale;"]
        for i, one in enumerate(sums):
            name = f"params.{_sums(one.param)}"
            lines += self.of_pair(
                f"float derivative_{i}", [one.derivative], _SCORED, _only, opening
            )
            lines += self.of_pair(
                f"float* place_{i}",
                list(one.indices),
                "",
                lambda *t, n=name: f"{n}.at({', '.join(t)})",
            )
        for kind, name in (("float", "derivative"), ("float*", "place")):
            lines += [
                "  template <int kSum, class... Given>",
                f"  static PYFLASH_HOST_DEVICE {kind} {name}(Given const&... given) {{",
                *(
                    f"    if constexpr (kSum == {i}) return {name}_{i}<false>(given...);"
                    for i in range(len(sums))
                ),
                "  }",
            ]
        return lines

    def _summed_over(self, one: _Sum) -> str:
        """What shares the place of a pair."""
        stages = {self.stages.of[node] for node in one.indices} - {Stage.UNIFORM}
        if not stages:
            name = "block"
        elif stages == {Stage.ROW}:
            name = "keys"
        elif stages == {Stage.COLUMN}:
            name = "queries"
        else:
            name = "nothing" if {Stage.ROW, Stage.COLUMN} <= stages else "runs"
        return f"SummedOver::{name}"

    def _score(self, signature: str, others: list[Node], result: Callable[..., str]) -> list[str]:
        """`result` of the texts of the score and of other roots."""
        root = self.stages.score
        if root.op in ("+", "-") and SCORE in root.args and root.args[0] != root.args[1]:
            other = root.args[1] if root.args[0] == SCORE else root.args[0]
            if SCORE not in postorder(other) and (root.op == "+" or root.args[0] == SCORE):
                sign = "-" if root.op == "-" else ""

                def fused(text: str, *others: str) -> str:
                    return result(f"fused(raw, scale, {sign}{enclosed(text)})", *others)

                return self.of_pair(signature, [other, *others], _SCORED, fused)
        opening = ["    [[maybe_unused]] float const s = raw * scale;"]
        return self.of_pair(signature, [root, *others], _SCORED, result, opening)

    def of_pair(
        self,
        signature: str,
        roots: list[Node],
        more: str,
        result: Callable[..., str],
        opening: Sequence[str] = (),
    ) -> list[str]:
        known = {**self.names, **{node: self._element(node) for node in self.stages.streams}}
        lines, texts = statements(roots, known)
        ahead = "" if self.has_many_rows else ", bool kAhead = false"
        return [
            f"  template <bool kStreamed{ahead}>",
            f"  static PYFLASH_HOST_DEVICE {signature}(",
            f"      {_OPERANDS}, Uniform const& uniform, Row const& row,",
            "      Column const& column, Distance const& distance, int b, int h, int q, int first,",
            f"      int offset{more}) {{",
            "    [[maybe_unused]] int const k = first + offset;",
            *opening,
            *lines,
            f"    return {result(*texts)};",
            "  }",
        ]

    def _element(self, node: Node) -> str:
        axis = node.args.index(index("k"))
        table = f"params.{node.data.name}.template element<kStreamed, {axis}>"
        now = f"{table}({self.lines[node]}, first, offset)"
        return f"(kAhead ? number({self.ahead[node]}) : {now})" if node in self.ahead else now


def _only(text: str) -> str:
    return text


def _member(name: str) -> str:
    return name.partition(".")[2]


def _positions(stage: Stage) -> dict[Node, str]:
    return {APART: "apart", ALIGNED: _ALIGNED} if stage is Stage.DISTANCE else {}


def _along(node: Node) -> str:
    """What a prepared field is a function of."""
    read = {n.data for n in postorder(node) if n.op == "index"}
    for name, along in (("q", "query"), ("k", "key"), ("apart", "apart")):
        if name in read:
            return along
    return "aligned"


def _prepared_field(node: Node) -> str:
    read = {n.data for n in postorder(node) if n.op == "index"}
    along = _along(node)
    has_lengths = not read.isdisjoint(("q_len", "k_len")) or (
        along == "apart" and "aligned" in read
    )
    facts = (str(fact).lower() for fact in ("b" in read, has_lengths, "h" in read))
    return f"{{Along::{along}, {', '.join(facts)}}}"
