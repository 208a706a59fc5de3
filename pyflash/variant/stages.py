"""When kernels compute each part of a score function and a mask: once for a batch and a head, for a
row, a column, a distance, or for each pair; and what is made before they run.

Parts that read queries and keys by their difference alone are functions of a distance: `apart`,
k - q, or `aligned`, the same with the last query and the last key at 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from pyflash.variant.affine import Affine
from pyflash.variant.axes import cost_of
from pyflash.variant.expr import Node, index, operation, rebuilt
from pyflash.variant.interval import MAX_POSITION, Bounds, anywhere
from pyflash.variant.scalars import BOOL, F32, I32
from pyflash.variant.walk import fold, postorder

APART, ALIGNED = index("apart"), index("aligned")
DISTANCES = (APART, ALIGNED)
# Floats hold every sum of _MOST_TERMS positions up to MOST_APART.
MOST_APART = 1 << 21
_MOST_TERMS = 6
_MOST_CONSTANT = 64
# Positions that a distance is a sum of.
_TERMS = {"apart": 2, "aligned": 4}


class Stage(IntEnum):
    """What a part is computed for; of two of them, for each pair."""

    UNIFORM = 0
    ROW = 1
    COLUMN = 2
    DISTANCE = 4
    PAIR = 7


# Estimated instructions from which on a field is read from a table. A thread computes those of few
# rows, but of many columns and distances; for gradients, of many rows.
_DEAR = {Stage.ROW: 12, Stage.COLUMN: 3, Stage.DISTANCE: 5}
_DEAR_IN_GRADIENTS = _DEAR | {Stage.ROW: 3}
# The same of a pair, from which on a mask is dear.
_DEAR_MASK = 2
_SPECIAL = 4  # instructions that an operation of the special function unit takes the place of
_CONVERSION = 4


def anywhere_apart(node: Node, args: tuple[Bounds, ...] = ()) -> Bounds:
    """`anywhere`, of distances, too."""
    if node in DISTANCES:
        most = MAX_POSITION * (_TERMS[node.data] // 2)
        return Bounds(-most, most)
    return anywhere(node, args)


def with_distances(root: Node) -> Node:
    """The same with sums and comparisons of k - q as those of a distance."""

    def rule(node: Node, args: tuple[Node, ...]) -> Node:
        made = rebuilt(node, args)
        if made.op in ("+", "-", "neg", "*") and made.kind is I32:
            total = _of_distance(Affine.of(made))
            return made if total is None else total.node()
        if made.op in ("<=", "==") and made.args[0].kind is I32:
            sides = [Affine.of(arg) for arg in made.args]
            total = _of_distance(sides[0].exactly_minus(sides[1]))
            if total is not None and all(side.fits() for side in sides) and _fits(total):
                left, right = total.sides(made.op)
                return operation(made.op, left.node(), right.node())
        return made

    return fold(root, rule)


def _fits(total: Affine) -> bool:
    low = high = total.constant
    for part, factor in total.terms:
        found = anywhere_apart(part) if part in DISTANCES else anywhere(part)
        ends = (factor * found.low, factor * found.high)
        low, high = low + min(ends), high + max(ends)
    return I32.holds(low) and I32.holds(high)


def _of_distance(total: Affine) -> Affine | None:
    """The sum of a distance and what is uniform; None where it is none."""
    terms = {part: factor for part, factor in total.terms if factor}
    factor = terms.pop(index("k"), 0)
    if not factor or terms.pop(index("q"), 0) != -factor or any(map(_reads_pair, terms)):
        return None
    lengths = (index("k_len"), index("q_len"))
    is_aligned = [terms.get(length, 0) for length in lengths] == [-factor, factor]
    if is_aligned:
        for length in lengths:
            del terms[length]
    terms = {ALIGNED if is_aligned else APART: factor, **terms}
    return Affine(total.kind, tuple(terms.items()), total.constant)


def _reads_pair(root: Node) -> bool:
    own = ("q", "k", "s", "apart", "aligned")
    return any(node.op == "index" and node.data in own for node in postorder(root))


def with_sums_apart(score: Node) -> Node:
    """The score function with the floats of sums such as 3 * k - 2 * q as sums of floats, of the
    key and of the rest: a conversion for each key and each query takes the place of one for each
    pair. They are the same where sequences are no longer than MOST_APART."""

    def rule(node: Node, args: tuple[Node, ...]) -> Node:
        made = rebuilt(node, args)
        if made.op != "f32" or made.args[0].kind is not I32:
            return made
        total = Affine.of(made.args[0])
        of_key = tuple(term for term in total.terms if term[0].data == "k")
        others = tuple(term for term in total.terms if term[0].data != "k")
        reads_query = any(part.data == "q" for part, _ in others)
        if not (of_key and reads_query and _is_short(total)):
            return made
        parts = (Affine(I32, of_key, 0), Affine(I32, others, total.constant))
        return operation("+", *(operation("f32", part.node()) for part in parts))

    return fold(score, rule)


def with_inverses(root: Node) -> Node:
    """The same with quotients by what is uniform as products with its inverse, on a device."""

    def rule(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op != "/" or _reads_pair(args[1]) or not _reads_pair(args[0]):
            return Node(node.op, node.kind, args, node.data)
        return Node("over", node.kind, (*args, Node("inverse", node.kind, args[1:])))

    return fold(root, rule)


def _is_short(total: Affine) -> bool:
    """Whether floats hold it where sequences are no longer than MOST_APART."""
    are_positions = all(part.op == "index" for part, _ in total.terms)
    n_terms = sum(abs(f) * _TERMS.get(str(part.data), 1) for part, f in total.terms)
    return are_positions and n_terms <= _MOST_TERMS and abs(total.constant) <= _MOST_CONSTANT


def is_float_of_distance(node: Node) -> bool:
    """The float of a sum of a distance, which kernels make of those of a thread's first one and of
    a constant."""
    if node.op != "f32" or node.args[0].kind is not I32:
        return False
    total = Affine.of(node.args[0])
    return any(part in DISTANCES for part, _ in total.terms) and _is_short(total)


def is_float_of_key(node: Node) -> bool:
    return node.op == "f32" and node.args[0] == index("k")


def makes_floats_of_positions(*roots: Node) -> bool:
    return any(is_float_of_key(n) or is_float_of_distance(n) for n in postorder(*roots))


@dataclass
class Stages:
    """The parts of a score function, of its slope where kernels compute gradients, of a mask, and
    of others, by stage."""

    score: Node
    mask: Node
    slope: Node | None = None
    others: tuple[Node, ...] = ()
    of: dict[Node, Stage] = field(init=False)
    # What other stages read of a stage, in order: fields.
    fields: dict[Stage, list[Node]] = field(init=False)
    prepared: list[Node] = field(default_factory=list)  # the fields that are read from tables
    streams: list[Node] = field(init=False)  # loads of a pair that are neighbours for keys that are

    @property
    def roots(self) -> tuple[Node, ...]:
        slope = () if self.slope is None else (self.slope,)
        return (self.score, self.mask, *slope, *self.others)

    def __post_init__(self) -> None:
        self.of = {}
        own = {"q": Stage.ROW, "k": Stage.COLUMN, "s": Stage.PAIR}
        own |= {"apart": Stage.DISTANCE, "aligned": Stage.DISTANCE}
        for node in postorder(*self.roots):
            read = {self.of[arg] for arg in node.args} - {Stage.UNIFORM}
            stage = read.pop() if read else Stage.UNIFORM
            if node.op == "index":
                stage = own.get(node.data, stage)
            self.of[node] = Stage.PAIR if read else stage
        self.streams = [n for n in self.of if self._is_stream(n)]
        by_pairs = [a for n in self.of if self.of[n] is Stage.PAIR for a in self.operands(n)]
        read = {n for n in (*by_pairs, *self.roots) if is_computed(n)}
        self.prepared = [n for n in self.of if n in read and self._is_dear(n)]
        # What tables have is not computed here.
        kept = set(postorder(*self.roots, operands=self.operands))
        wanted = {
            arg
            for node in kept
            for arg in self.operands(node)
            if self.of[node] is not self.of[arg] and is_computed(arg)
        }
        wanted |= {n for n in self.roots if is_computed(n)}
        self.fields = {
            stage: [n for n in self.of if n in wanted and self.of[n] is stage] for stage in Stage
        }

    def operands(self, node: Node) -> tuple[Node, ...]:
        return () if node in self.prepared or node in self.streams else node.args

    def _is_dear(self, node: Node) -> bool:
        stage = self.of[node]
        dear = _DEAR if self.slope is None else _DEAR_IN_GRADIENTS
        if stage not in dear or node.kind not in (BOOL, I32, F32):
            return False
        cost = 0
        for part in postorder(node):
            if self.of[part] is Stage.UNIFORM:
                continue
            if part.op == "load":
                return True
            found = cost_of(part)
            cost += found.instructions + _SPECIAL * found.special
            is_free = is_float_of_distance(part) or is_float_of_key(part)
            is_float = part.op == "f32" and part.args[0].kind.is_integer
            cost += _CONVERSION if is_float and not is_free else 0
        return cost >= dear[stage]

    @property
    def mask_is_dear(self) -> bool:
        """Whether a bit of a pair is cheaper than what the mask computes for it, or reads."""
        cost = 0
        for node in postorder(self.mask, operands=self.operands):
            if self.of[node] is Stage.PAIR:
                cost += _DEAR_MASK if node.op == "load" else cost_of(node).instructions
        return cost >= _DEAR_MASK

    def _is_stream(self, node: Node) -> bool:
        if node.op != "load" or self.of[node] is not Stage.PAIR:
            return False
        others = [arg for arg in node.args if arg != index("k")]
        rows = (Stage.UNIFORM, Stage.ROW)
        return len(others) == len(node.args) - 1 and all(self.of[n] in rows for n in others)


def is_computed(node: Node) -> bool:
    """Whether a field is worth it."""
    is_number = node.op == "load" and node.data.rank is None
    return node.op not in ("constant", "index") and not is_number
