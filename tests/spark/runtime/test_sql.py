"""Tests that names and texts in SQL are quoted, all of them by the same functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sfpubsub.spark
from sfpubsub.spark.runtime.sql import quoted, sql_text

SOURCES = Path(sfpubsub.spark.__file__).parent


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (["Name"], "`Name`"),
        (["select"], "`select`"),
        (["a.b"], "`a.b`"),
        (["a", "b"], "`a`.`b`"),
        (["back`tick"], "`back``tick`"),
        (["`"], "````"),
        (["shop", "o`r.der", 'it\'s "x"'], '`shop`.`o``r.der`.`it\'s "x"`'),
    ],
)
def test_a_name_is_quoted_as_a_whole(path: list[str], text: str):
    """A dot or a backtick in a name neither ends the name nor begins another one."""
    assert quoted(*path) == text


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("Order", "'Order'"),
        ("it's", r"'it\'s'"),
        ("a\\", r"'a\\'"),
        (r"\'; DROP TABLE x --", r"'\\\'; DROP TABLE x --'"),
    ],
)
def test_no_text_ends_its_literal(text: str, literal: str):
    """Neither a quote nor a backslash in a text ends the literal in which it stands."""
    assert sql_text(text) == literal


def quoted_by_hand(path: Path) -> Iterator[int]:
    """Yield the lines in which a file puts something between backticks itself.

    These are f-strings with a backtick, and texts with a single one, to which something is added.
    Docstrings are left out.
    """
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        texts = [part.value for part in parts if isinstance(part, ast.Constant)]
        count = sum(text.count("`") for text in texts if isinstance(text, str))
        if count and id(node) not in prose and (len(parts) > 1 or count % 2):
            yield node.lineno


def test_all_names_are_quoted_by_the_same_function():
    """No module quotes a name on its own, where a backtick in the name would end it."""
    found = {
        str(path.relative_to(SOURCES)): lines
        for path in sorted(SOURCES.rglob("*.py"))
        if path.name != "sql.py" and (lines := list(quoted_by_hand(path)))
    }
    assert found == {}
