"""How the records of a command are printed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from sfpubsub.cli.results import print_record, print_records


@dataclass(frozen=True)
class Thing:
    """A record as a command gets it."""

    name: str
    label: str | None
    members: tuple[str, ...]


ONE, TWO = Thing("A", None, ("x", "y")), Thing("Longer", "two words", ())


def test_a_pipe_gets_json_lines(capsys):
    """In a pipe or a file, each record is a JSON line, printed as it arrives."""

    def arriving():
        yield ONE
        yield TWO
        assert json.loads(capsys.readouterr().out.splitlines()[0])["name"] == "A"

    print_records(arriving(), "no things")
    print_record(ONE)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "name": "A",
        "label": None,
        "members": ["x", "y"],
    }


def test_a_terminal_gets_a_table(capsys, monkeypatch):
    """On a terminal, records are a table with aligned columns, and one record a line per value."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_records([{"name": "A"}, TWO], "no things")
    assert capsys.readouterr().out.splitlines() == [
        "name    label      members",
        "A",
        "Longer  two words  []",
    ]
    print_record(ONE)
    assert capsys.readouterr().out.splitlines() == [
        "name     A",
        "label",
        'members  ["x","y"]',
    ]


def test_no_records_are_said_on_stderr(capsys):
    """A command that found nothing does not end in silence."""
    print_records([], "no things")
    assert capsys.readouterr() == ("", "no things\n")
