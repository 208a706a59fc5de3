"""A variant from its line of text. What is refused is said with a caret below the place."""

from __future__ import annotations

import ast
import difflib
import io
import tokenize

from pyflash.config.words import shown
from pyflash.variant.dsl import param_of
from pyflash.variant.expr import MEANINGS, TRUE, Node, Param, constant, index, load, operation
from pyflash.variant.portable import HEAD, SEPARATOR
from pyflash.variant.scalars import ARITY
from pyflash.variant.value import Variant, as_score


class TextError(ValueError):
    """Text that is no variant: the reason, and a caret below the place."""

    def __init__(self, reason: str, text: str, column: int) -> None:
        self.reason, self.text, self.column = reason, text, column
        super().__init__(f"{reason}\n  {text}\n  {' ' * column}^")

    def __reduce__(self) -> tuple:
        return TextError, (self.reason, self.text, self.column)


def parse(text: str) -> Variant:
    """The variant that `str` of it names. Raises TextError, a ValueError."""
    return _Parser(text).variant()


_LONGEST = 1 << 16
_BINARY: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.And: "&", ast.Or: "|",
}  # fmt: skip
_UNARY_OPS: dict[type, str] = {ast.USub: "neg", ast.Invert: "~", ast.Not: "~"}
_CURES = {
    ast.IfExp: "if is no part of an expression: expected where(condition, a, b)",
    ast.Pow: "** is no operator: expected a product, such as x * x, or exp2(n * log2(x))",
    ast.MatMult: "@ is no operator: expected numbers, index the tensors",
    ast.Attribute: "an attribute is no part of an expression: expected a name without a dot",
    ast.Lambda: "a function is no part of an expression: expected what it returns",
    ast.Slice: "a slice is no index: expected one position for each axis",
    ast.Tuple: "a tuple is no expression: expected one number",
    ast.In: "in is no operator: expected comparisons, such as (k == 0) | (k == 1)",
    ast.Is: "is is no operator: expected ==",
}


class _Parser:
    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"{shown(text)} is no text of a variant: expected a str")
        self.text = " ".join(text.splitlines()).rstrip()
        self.params: dict[str, Param] = {}
        self.offset = 0  # of the part that is read now, for carets
        if len(self.text) > _LONGEST:
            raise ValueError(f"a text of {len(self.text)} characters: expected at most {_LONGEST}")
        for column, character in enumerate(self.text):
            if not " " <= character <= "~" or character in "#;\\'\"`":
                raise self.refusal(
                    f"{character!r} is no part of a variant: expected it without", column
                )

    def refusal(self, reason: str, column: int) -> TextError:
        """At a column of the whole text."""
        return TextError(reason, self.text, min(column, len(self.text)))

    def refusal_at(self, reason: str, node: ast.AST) -> TextError:
        return self.refusal(reason, self.offset + getattr(node, "col_offset", 0))

    def variant(self) -> Variant:
        colon, where = self._marks()
        if colon is None:
            raise self.refusal(
                "no colon: expected name(parameters): score where mask", len(self.text)
            )
        name = self._header(self.text[:colon])
        end = len(self.text) if where is None else where
        score = as_score(self._expression(colon + 1, end))
        mask = TRUE if where is None else self._expression(where + len("where"), len(self.text))
        try:
            return Variant(name, tuple(self.params.values()), score, mask)
        except ValueError as error:
            raise self.refusal(str(error), 0) from None

    def _marks(self) -> tuple[int | None, int | None]:
        """The columns of the colon, and of the `where` before the mask: outside of parentheses,
        where an operator could stand."""
        colon = where = None
        depth, after_operand = 0, False
        try:
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                column, word = token.start[1], token.string
                depth += (word in ("(", "[", "{")) - (word in (")", "]", "}"))
                if depth < 0:
                    raise self.refusal(
                        f"{word} closes nothing: expected it after an opening one", column
                    )
                if depth == 0 and word == ":" and colon is None:
                    colon = column
                if depth == 0 and word == "where" and after_operand:
                    if where is not None:
                        raise self.refusal(
                            "a second where: expected one mask, join them by &", column
                        )
                    where = column
                    after_operand = False
                    continue
                is_name = token.type == tokenize.NAME and word not in ("and", "or", "not")
                after_operand = is_name or token.type == tokenize.NUMBER or word in (")", "]")
        except (tokenize.TokenError, SyntaxError):
            reason = "a bracket is not closed: expected as many ) and ]"
            raise self.refusal(reason, len(self.text)) from None
        return colon, where

    def _header(self, header: str) -> str:
        prefix = "def "
        stripped = header.strip()
        self.offset = header.index(stripped) - len(prefix)
        call = stripped if stripped.endswith(")") else f"{stripped}()"
        try:
            (function,) = ast.parse(f"{prefix}{call}: pass").body
        except (SyntaxError, ValueError):
            function = None
        if not isinstance(function, ast.FunctionDef):
            raise self.refusal(
                f"{shown(header)} is no head of a variant: expected a name, or a name with "
                "parameters, such as alibi(slope: f32[1])",
                0,
            )
        for arg in ast.walk(function.args):
            if isinstance(arg, ast.arg):
                self._declare(arg)
        arguments = function.args
        if arguments.defaults or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise self.refusal("a parameter has a default or a star: expected name: type", 0)
        return function.name

    def _declare(self, arg: ast.arg) -> None:
        if arg.annotation is None:
            raise self.refusal_at(f"{arg.arg} has no type: expected {arg.arg}: f32, or f32[1]", arg)
        if arg.arg in self.params:
            raise self.refusal_at(
                f"{arg.arg} is declared twice: expected one parameter of a name", arg
            )
        try:
            self.params[arg.arg] = param_of(arg.arg, ast.unparse(arg.annotation))
        except ValueError as error:
            raise self.refusal_at(str(error), arg) from None

    def _expression(self, begin: int, end: int) -> Node:
        part = self.text[begin:end]
        self.offset = begin - 1
        if not part.strip():
            raise self.refusal("nothing here: expected an expression", begin)
        try:
            return self._node(ast.parse(f"({part})", mode="eval").body)
        except SyntaxError as error:
            column = self.offset + max((error.offset or 1) - 1, 1)
            reason = f"not an expression ({error.msg}): expected one as in Python"
            raise self.refusal(reason, column) from None
        except (RecursionError, MemoryError):
            reason = "an expression is nested too deeply: expected fewer levels"
            raise self.refusal(reason, begin) from None

    def _node(self, node: ast.expr) -> Node:
        try:
            return self._built(node)
        except TextError:
            raise
        except ValueError as error:
            raise self.refusal_at(str(error), node) from None

    def _built(self, node: ast.expr) -> Node:
        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                return constant(value)
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                if not isinstance(value, bool):
                    return constant(-value)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._node(operand)
        match node:
            case ast.UnaryOp(op=op, operand=operand):
                if isinstance(op, ast.Not):
                    self._check_bool("not", operand)
                return operation(_UNARY_OPS[type(op)], self._node(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return operation(_BINARY[type(op)], self._node(left), self._node(right))
            case ast.BoolOp(op=op, values=[first, *others]):
                found = self._check_bool(_word(op), first)
                for other in others:
                    found = operation(_BINARY[type(op)], found, self._check_bool(_word(op), other))
                return found
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
                return operation(_BINARY[type(op)], self._node(left), self._node(right))
            case ast.Compare(ops=[_, _, *_]):
                cure = "expected (a < b) & (b < c); & binds tighter than a comparison"
                raise self.refusal_at(f"a chain of comparisons: {cure}", node)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(node, name, args)
            case ast.Subscript(value=ast.Name(id=name), slice=where):
                parts = where.elts if isinstance(where, ast.Tuple) else [where]
                return load(self._param(node, name), *map(self._node, parts))
        inner = getattr(node, "op", None) or next(iter(getattr(node, "ops", [])), node)
        known = _CURES.get(type(inner)) or _CURES.get(type(node))
        raise self.refusal_at(
            known
            or f"{shown(ast.unparse(node))} is no expression of a variant: expected numbers, "
            "names, operators, functions and loads",
            node,
        )

    def _check_bool(self, word: str, node: ast.expr) -> Node:
        found = self._node(node)
        if found.kind.bits != 1:
            raise self.refusal_at(f"{word} of {found.kind}: expected bool, such as x != 0", node)
        return found

    def _name(self, node: ast.expr, name: str) -> Node:
        if name in MEANINGS:
            return index(name)
        if name == "inf":
            return constant(float("inf"))
        return load(self._param(node, name))

    def _param(self, node: ast.expr, name: str) -> Param:
        if name in self.params:
            return self.params[name]
        if name in ARITY:
            raise self.refusal_at(
                f"{name} is a function: expected its operands in parentheses", node
            )
        if name in MEANINGS:
            raise self.refusal_at(f"{name} is a number: expected a tensor before [", node)
        near = difflib.get_close_matches(name, [*MEANINGS, *self.params, *ARITY], 1)
        hint = f"did you mean {near[0]}? Else declare it" if near else "declare it"
        raise self.refusal_at(
            f"{name} is unknown: {hint} as a parameter, such as {name}: f32[1]", node
        )

    def _call(self, node: ast.expr, name: str, args: list[ast.expr]) -> Node:
        if name in ARITY and name.isidentifier() and name != "neg":
            return operation(name, *map(self._node, args))
        functions = sorted(op for op in ARITY if op.isidentifier() and op != "neg")
        near = difflib.get_close_matches(name, functions, 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(functions)}"
        raise self.refusal_at(f"{name} is no function: {hint}", node)


def normal_of(portable: str) -> Variant:
    """The normal form that a portable text is of. Raises ValueError for any other text."""
    head, _, rest = portable.partition(SEPARATOR)
    if head != HEAD:
        raise ValueError(f"the text of the variant is not portable: expected {HEAD!r} first")
    return parse(rest.partition(SEPARATOR)[0])


def _word(op: ast.boolop) -> str:
    return "and" if isinstance(op, ast.And) else "or"
