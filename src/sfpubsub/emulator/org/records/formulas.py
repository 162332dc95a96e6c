"""Formula fields: arithmetic and text concatenation over the fields of the same record.

    Quantity__c * Price__c - 1        numbers: + - * / and parentheses
    FirstName & " " & LastName        strings, joined by &

Everything else is rejected when the field is defined. The result of arithmetic with an empty field
is empty; when strings are joined, an empty field counts as an empty string.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

_SIGNS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

_DEEPEST = 50
"""Maximum number of operators in a formula, which limits the depth of the recursion."""


def fields_of(text: str) -> tuple[str, ...]:
    """Return the names of the fields that a formula uses.

    Raises:
        ValueError: The formula is not valid, or uses unsupported syntax.
    """
    return tuple(node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name))


def compute(text: str, row: Mapping[str, Any]) -> Any:
    """Return the value of a formula for a record, or None if it cannot be computed."""
    try:
        return _value(_parsed(text).body, {name.lower(): value for name, value in row.items()})
    except (TypeError, ZeroDivisionError, OverflowError):
        return None  # an empty field, a text instead of a number, a division by zero


@lru_cache(maxsize=256)
def _parsed(text: str) -> ast.Expression:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"formula {text[:80]!r} is not a valid expression") from error
    nodes = list(ast.walk(tree))
    if sum(isinstance(node, ast.BinOp) for node in nodes) > _DEEPEST:
        raise ValueError(f"formula {text[:80]!r} has more than {_DEEPEST} operators")
    for node in nodes:
        known = isinstance(
            node,
            (ast.Expression, ast.BinOp, ast.Name, ast.Load, ast.UnaryOp, ast.USub, *_SIGNS),
        )
        plain = isinstance(node, ast.Constant) and type(node.value) in (int, float, str)
        if not (known or plain or isinstance(node, ast.BitAnd)):
            raise ValueError(
                f"formula {text[:80]!r} may contain only fields, numbers, strings, parentheses"
                " and + - * / &"
            )
    return tree


def _value(node: ast.expr, row: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return row.get(node.id.lower())
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, row)
    if not isinstance(node, ast.BinOp):  # `_parsed` allows nothing else
        raise TypeError(node)
    left, right = _value(node.left, row), _value(node.right, row)
    if isinstance(node.op, ast.BitAnd):
        return _text(left) + _text(right)
    return _SIGNS[type(node.op)](left, right)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
