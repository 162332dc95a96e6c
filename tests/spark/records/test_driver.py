"""The rows of a table never pass through Spark's driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import TABLE_FORMAT
from tests.spark.records.large_step import CHANGED, ROWS


@pytest.mark.slow
def test_a_large_step_fits_into_a_small_driver(tmp_path: Path):
    """A step of 2,000,000 records, and one with 200,000 changes to them, need no more than 64 MB of
    results in the driver.
    """
    command = [sys.executable, "-m", "tests.spark.records.large_step", f"{tmp_path}/", TABLE_FORMAT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found == {"rows": ROWS, "changed": CHANGED, "history": ROWS + CHANGED}
