"""The public names are typed to the last parameter, as pyright sees it in an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_book import found, listed


@pytest.mark.slow  # a quarter of a minute of the processor
def test_the_public_names_are_typed_completely():
    """Every name of the reference, with its methods, attributes and what these refer to."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pyright", "--pythonpath", sys.executable),
            *("--verifytypes", "sfpubsub", "--ignoreexternal", "--outputjson"),
        ],
        # Here it asks the first Python on the path what is installed, whatever --pythonpath says.
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
