"""Small bugs of the kinds that people make, put into the source of one function at one place.

Every mutation changes a few characters and leaves the rest of the text alone, comments and layout included. Whether it
changes what the function does is for its tests to say: some mutants behave like the original.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "off_by_one",
    "wrong_operator",
    "wrong_variable",
    "missing_return",
    "wrong_default",
    "swapped_arguments",
    "inverted_condition",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_OPERATORS: Mapping[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+", "//")),
    ast.FloorDiv: ("//", ("*", "%")),
    ast.Mod: ("%", ("//",)),
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
}
_WORDS: Mapping[type[ast.AST], tuple[str, str]] = {ast.And: ("and", "or"), ast.Or: ("or", "and")}


@dataclass(frozen=True)
class Mutation:
    """One bug: its kind, the source with it, and where: `start` and `end` of the replaced characters of the original,
    `text` in their place.
    """

    kind: Kind
    start: int
    end: int
    text: str
    source: str


def mutations(source: str) -> list[Mutation]:
    """Every mutation of a module's functions, by place and kind; each once. Raises SyntaxError for a source that is no
    Python, ValueError for one that is not ASCII (places are counted in characters).
    """
    if not source.isascii():
        raise ValueError("only ASCII sources can be mutated")
    text = _Text(source)
    found: dict[tuple[int, int, str], Mutation] = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for kind, propose in _PROPOSERS.items():
                for start, end, new in propose(function, text):
                    whole = source[:start] + new + source[end:]
                    found.setdefault((start, end, new), Mutation(kind, start, end, new, whole))
    return sorted(found.values(), key=lambda each: (each.start, each.end, each.text))


class _Text:
    """A source and the places of its nodes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def between(self, left: ast.expr, right: ast.expr, what: str) -> tuple[int, int] | None:
        """Where `what` stands between two nodes."""
        start, end = self.span(left)[1], self.span(right)[0]
        at = self.source.find(what, start, end)
        return None if at < 0 else (at, at + len(what))


Place = tuple[int, int, str]
Proposer = Callable[[ast.FunctionDef, _Text], Iterator[Place]]


def _body(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Every node of the body but those inside f-strings, whose places Python 3.11 does not know."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.JoinedStr):
            waiting += ast.iter_child_nodes(node)


def _off_by_one(function: ast.FunctionDef, text: _Text) -> Iterator[Place]:
    for node in _body(function):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            for other in (node.value - 1, node.value + 1):
                if other >= 0:
                    yield *text.span(node), str(other)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            for bound in node.args:
                if isinstance(bound, ast.Name | ast.Call):
                    yield *text.span(bound), f"{text.of(bound)} - 1"


def _wrong_operator(function: ast.FunctionDef, text: _Text) -> Iterator[Place]:
    for node in _body(function):
        if isinstance(node, ast.BinOp):
            yield from _other_operator(node.left, node.op, node.right, text)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _other_operator(node.left, node.ops[0], node.comparators[0], text)
        elif isinstance(node, ast.BoolOp):
            word, other = _WORDS[type(node.op)]
            place = text.between(node.values[0], node.values[1], word)
            if place is not None and len(node.values) == 2:
                yield *place, other
        elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
            symbol, others = _OPERATORS[type(node.op)]
            place = text.between(node.target, node.value, f"{symbol}=")
            if place is not None:
                yield *place, f"{others[0]}="


def _other_operator(left: ast.expr, operator: ast.AST, right: ast.expr, text: _Text) -> Iterator[Place]:
    if type(operator) in _OPERATORS:
        symbol, others = _OPERATORS[type(operator)]
        place = text.between(left, right, symbol)
        if place is not None:
            yield from ((*place, other) for other in others)


def _wrong_variable(function: ast.FunctionDef, text: _Text) -> Iterator[Place]:
    """One name read in place of another, both of which are parameters: no name that may not be set yet."""
    parameters = [argument.arg for argument in function.args.args]
    for node in _body(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in parameters:
            for other in parameters:
                if other != node.id:
                    yield *text.span(node), other


def _missing_return(function: ast.FunctionDef, text: _Text) -> Iterator[Place]:
    for node in _body(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield *text.span(node), text.of(node.value)


def _wrong_default(function: ast.FunctionDef, text: _Text) -> Iterator[Place]:
    for default in function.args.defaults:
        if isinstance(default, ast.Constant) and type(default.value) is int:
            for other in (default.value + 1, default.value * 10):
                yield *text.span(default), str(other)
        elif isinstance(default, ast.Constant) and isinstance(default.value, bool):
            yield *text.span(default), str(not default.value)
        elif isinstance(default, ast.Constant) and isinstance(default.value, str):
            yield *text.span(default), repr("" if default.value else " ").replace("'", '"')


def _swapped_arguments(function: ast.FunctionDef, text: _Text) -> Iterator[Place]:
    for node in _body(function):
        if (
            isinstance(node, ast.Call)
            and len(node.args) >= 2
            and not any(isinstance(a, ast.Starred) for a in node.args)
        ):
            first, second = node.args[0], node.args[1]
            (start, middle), (again, end) = text.span(first), text.span(second)
            yield start, end, text.of(second) + text.source[middle:again] + text.of(first)


def _inverted_condition(function: ast.FunctionDef, text: _Text) -> Iterator[Place]:
    for node in _body(function):
        if isinstance(node, ast.If | ast.IfExp):
            yield *text.span(node.test), _inverted(node.test, text)


def _inverted(test: ast.expr, text: _Text) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return text.of(test.operand)
    simple = isinstance(test, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
    return f"not {text.of(test)}" if simple else f"not ({text.of(test)})"


_PROPOSERS: Mapping[Kind, Proposer] = {
    "off_by_one": _off_by_one,
    "wrong_operator": _wrong_operator,
    "wrong_variable": _wrong_variable,
    "missing_return": _missing_return,
    "wrong_default": _wrong_default,
    "swapped_arguments": _swapped_arguments,
    "inverted_condition": _inverted_condition,
}
