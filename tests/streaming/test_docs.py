"""Tests that run the Python examples of the two streaming pages and parse their commands."""

from __future__ import annotations

import ast
import re
import shlex

import pytest

from sfpubsub.cli.main import cli

from ..cli.test_cli import point_at
from ..pages import ROOT, blocks, page
from .conftest import TOPIC, records

PAGES = [page("streaming"), page("migrating-from-aiosfstream")]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=f"{path.stem}-{number}")
        for path in PAGES
        for number, code in enumerate(blocks(path, "python"), 1)
    ],
)
def test_a_python_example_runs(code, emulator, monkeypatch, tmp_path):
    """Each Python example on the streaming pages runs unchanged until it prints a value.

    Printing None fails the test.
    """
    point_at(emulator, monkeypatch)
    monkeypatch.chdir(tmp_path)
    emulator.publish_streaming(TOPIC, records("Ada", "Bob"))
    printed = []

    class EnoughError(Exception):
        pass

    def show(*values):
        printed.append(values)
        raise EnoughError  # the examples loop forever, so the test leaves them at the first print

    with pytest.raises(EnoughError):
        exec(compile(code, "example", "exec"), {"__name__": "example", "print": show})
    assert all(value is not None for value in printed[0])


def test_aiosfstream_code_is_marked_as_not_run():
    """Every aiosfstream block on the migration page is marked as not run.

    None of our own blocks mentions aiosfstream.
    """
    text = PAGES[1].read_text()
    assert text.count("Before (not run):") == len(blocks(PAGES[1], "py")) == 3
    for code in blocks(PAGES[1], "python"):
        ast.parse(code)
        assert "aiosfstream" not in code


def test_the_commands_parse():
    """Every command on the streaming page exists and accepts its options."""
    lines = [line for block in blocks(PAGES[0], "sh") for line in block.splitlines()]
    assert len(lines) == 5
    for line in lines:
        _, command, *arguments = shlex.split(line)
        with cli.make_context("sfpubsub", [command, *arguments]) as context:
            found = cli.get_command(context, command)
            found.make_context(command, arguments, parent=context).close()


def test_the_files_named_as_evidence_exist():
    """Every test file that the streaming page names as evidence exists."""
    found = re.findall(r"`(tests/[\w/]+\.py)`", PAGES[0].read_text())
    assert found
    for path in found:
        assert (ROOT / path).is_file(), path
