"""Tests of how the options that take a table or a target of tables may be spelled."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sfpubsub.cli.main import run
from sfpubsub.spark.runtime.paths import kind_of

ROOT = Path(__file__).parents[2]
TOPIC = "/event/Order_Event__e"
SCHEMA = ("./out", "catalog.out", "spark_catalog")
TABLE = ("./out", "schema.out")

# Every option that takes a table or a target of tables.
OPTIONS = [
    (["ingest", "--topic", TOPIC, "--to", "out"], TABLE),
    (["ingest", "--topic", TOPIC, "--to", "out", "--format", "delta"], TABLE),
    (["tables", "--from", "out", "--to", "./tables"], TABLE),
    (["tables", "--from", "./raw", "--to", "out"], SCHEMA),
    (["tables", "rebuild", "--from", "./raw", "--to", "out", "--yes"], SCHEMA),
    (["mirror", "run", "Account", "--to", "out"], SCHEMA),
    (["mirror", "run", "Account", "--to", "./lake", "--raw", "out"], TABLE),
    (["mirror", "signal", "--to", "out", "--pause"], SCHEMA),
    (["mirror", "verify", "Account", "--to", "out"], SCHEMA),
    (["quarantine", "redrive", "--dir", ".", "--to", "out"], TABLE),
]


@pytest.mark.parametrize(("arguments", "spellings"), OPTIONS)
def test_a_bare_name_is_refused_with_both_spellings(
    arguments: list[str], spellings: tuple[str, ...], tmp_path: Path, monkeypatch, capsys
):
    """A name without a slash or a dot ends the command with exit code 2. The error names the
    spelling of the directory and of the name in a catalog. It comes before anything is created,
    and before Spark, which cannot even be imported here, could start.
    """
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert [text for text in spellings if text not in error] == []
    assert list(tmp_path.iterdir()) == []


# A command of a page, up to the end of the line, and the options in it that name a table.
COMMANDS = re.compile(r"\b(?:ingest|tables|mirror (?:run|signal|verify)|redrive) [^`\n]*")
NAMED = re.compile(r"--(to|from|raw)[ =]([^\s`,)\]]+)")


def test_the_pages_follow_the_rule():
    """Every table or target in a command of the README, the book and the examples is spelled as the
    commands require; words in capitals stand for any spelling.
    """
    found = 0
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]:
        for command in COMMANDS.findall(page.read_text()):
            for option, spelling in NAMED.findall(command):
                what = "schema" if option == "to" and "ingest " not in command else "table"
                if not spelling.isupper():
                    kind_of(spelling.strip("\"'"), what)
                    found += 1
    assert found >= 40
