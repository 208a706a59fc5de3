"""Expressions as postfix programs, and an interpreter of them: a program runs where there is no
compiler.

A program is a list of (opcode, operand). OPCODES has each opcode's name:
  constant        pushes constants[operand]
  index           pushes the value of expr.MEANINGS[operand]
  load            pops an index for each axis of parameter `operand`, the last first; pushes
  keep, recall    copies the top of the stack into slot `operand`; pushes it
  OPERATION.TYPE  pops operands of that type (of where, a bool before them), pushes the result
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyflash.variant.arithmetic import applied
from pyflash.variant.expr import MEANINGS, Node, Param
from pyflash.variant.normal import simplified
from pyflash.variant.scalars import ARITY, BOOL, F32, I32, I64, Scalar, signature
from pyflash.variant.walk import postorder

_OWN = ("constant", "index", "load", "keep", "recall")
_TYPED = tuple((op, kind) for op in ARITY for kind in (BOOL, I32, I64, F32))
OPCODES = (*_OWN, *(f"{op}.{kind}" for op, kind in _TYPED))
_NUMBER = {name: number for number, name in enumerate(OPCODES)}
_INDICES = tuple(MEANINGS)


@dataclass(frozen=True, slots=True)
class Program:
    code: tuple[tuple[int, int], ...]
    constants: tuple[Any, ...]
    params: tuple[Param, ...]
    stack: int  # the most values at a time
    slots: int

    def __str__(self) -> str:
        return "\n".join(self._line(*instruction) for instruction in self.code)

    def _line(self, opcode: int, operand: int) -> str:
        name = OPCODES[opcode]
        words = {
            "constant": lambda: repr(self.constants[operand]),
            "index": lambda: _INDICES[operand],
            "load": lambda: self.params[operand].name,
            "keep": lambda: str(operand),
            "recall": lambda: str(operand),
        }
        return f"{name} {words[name]()}" if name in words else name


def program_of(root: Node, params: Sequence[Param]) -> Program:
    """The program of an expression whose parameters are among `params`."""
    return _Writer(simplified(root), params).program()


class _Writer:
    def __init__(self, root: Node, params: Sequence[Param]) -> None:
        self.root, self.params = root, tuple(params)
        uses = Counter(arg for node in postorder(root) for arg in node.args)
        self.shared = {node for node, count in uses.items() if count > 1 and node.args}
        self.slots: dict[Node, int] = {}
        self.constants: dict[tuple[Scalar, str], tuple[int, Any]] = {}
        self.code: list[tuple[int, int]] = []
        self.height = self.most = 0

    def program(self) -> Program:
        stack = [(self.root, False)]
        while stack:
            node, ready = stack.pop()
            if node in self.slots:
                self.emit("recall", self.slots[node], 1)
            elif ready or not node.args:
                self.write(node)
            else:
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))
        constants = tuple(value for _, value in self.constants.values())
        return Program(tuple(self.code), constants, self.params, self.most, len(self.slots))

    def emit(self, name: str, operand: int, grows: int) -> None:
        self.code.append((_NUMBER[name], operand))
        self.height += grows
        self.most = max(self.most, self.height)

    def write(self, node: Node) -> None:
        grows = 1 - len(node.args)
        if node.op == "constant":
            place = (len(self.constants), node.data)
            self.emit("constant", self.constants.setdefault(_key(node), place)[0], grows)
        elif node.op == "index":
            self.emit("index", _INDICES.index(node.data), grows)
        elif node.op == "load":
            self.emit("load", self.params.index(node.data), grows)
        else:
            kinds, _ = signature(node.op, tuple(arg.kind for arg in node.args))
            self.emit(f"{node.op}.{kinds[-1]}", 0, grows)
        if node in self.shared:
            self.slots[node] = len(self.slots)
            self.emit("keep", self.slots[node], 0)


def _key(node: Node) -> tuple[Scalar, str]:
    return node.kind, repr(node.data)


def run(program: Program, indices: Sequence[Any], values: Sequence[Any]) -> tuple[Any, bool]:
    """The value at one pair, and whether every index of a tensor was inside of it.

    indices: in the order of expr.MEANINGS. values: of the parameters, numbers or nested lists. An
    index outside of a tensor is clamped to it.
    """
    stack: list[Any] = []
    slots = [None] * program.slots
    inside = True
    for opcode, operand in program.code:
        if opcode >= len(_OWN):
            op, kind = _TYPED[opcode - len(_OWN)]
            count = ARITY[op]
            stack[-count:] = [applied(op, kind, *stack[-count:])]
            continue
        name = _OWN[opcode]
        if name == "constant":
            stack.append(program.constants[operand])
        elif name == "index":
            stack.append(indices[operand])
        elif name == "keep":
            slots[operand] = stack[-1]
        elif name == "recall":
            stack.append(slots[operand])
        else:
            rank = program.params[operand].rank or 0
            found, good = _element(values[operand], stack[len(stack) - rank :])
            del stack[len(stack) - rank :]
            stack.append(found)
            inside = inside and good
    (result,) = stack
    return result, inside


def _element(table: Any, indices: Sequence[int]) -> tuple[Any, bool]:
    good = True
    for index in indices:
        extent = len(table)
        place = index + extent if index < 0 else index
        good = good and 0 <= place < extent
        table = table[min(max(place, 0), extent - 1)]
    return table, good
