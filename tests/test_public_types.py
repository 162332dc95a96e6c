"""Tests that the public names of the installed package are fully typed for Pyright."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_book import found, listed


@pytest.mark.slow  # takes 15 s of CPU time
def test_the_public_names_are_completely_typed():
    """Pyright knows the type of every name in the reference and of all its members."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pyright", "--pythonpath", sys.executable),
            *("--verifytypes", "sfpubsub", "--ignoreexternal", "--outputjson"),
        ],
        # With --verifytypes, pyright asks the first Python on the path, despite --pythonpath.
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    names = listed()
    things = [found(name) for name in names]
    homes = {
        *names,
        *(
            f"{thing.__module__}.{thing.__qualname__}"
            for thing in things
            if isinstance(thing, type)
        ),
    }
    assert homes & {symbol["name"] for symbol in symbols}
    incomplete = {
        symbol["name"]: [each["message"] for each in symbol["diagnostics"]]
        for symbol in symbols
        if not (symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"])
        and any(symbol["name"] == home or symbol["name"].startswith(f"{home}.") for home in homes)
    }
    assert incomplete == {}
