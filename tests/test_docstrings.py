"""Tests of what ruff does not check about docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "sfpubsub"


def misnamed(source: str) -> Iterator[str]:
    """Yield each parameter that its function's docstring has in backquotes, with the line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            quoted = re.findall(r"(?<!`)`(\w+)`(?!`)", ast.get_docstring(node) or "")
            yield from (f"{name}, line {node.lineno}" for name in quoted if name in names)


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda p: str(p.relative_to(SRC)))
def test_docstrings_mark_parameters_with_asterisks(path: Path):
    """In docstrings, a parameter is *name*, and backquotes are for names of the module."""
    assert list(misnamed(path.read_text())) == []


def test_a_parameter_in_backquotes_is_found():
    """The check above sees each kind of parameter, and only parameters."""
    source = 'def f(a, *, b, **c):\n    """Put `a` on *b* and `c`, see `g` and ``a``."""'
    assert list(misnamed(source)) == ["a, line 1", "c, line 1"]
