"""What the page on mirrors shows is executed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pages import blocks, page
from tests.test_docs import free_ports, terminal  # noqa: F401  # a fixture

PAGE = page("mirror")

# Longest that a block of the second terminal may take, in seconds: it starts Spark twice, which
# takes a busy machine minutes.
PATIENCE = 1800.0


@pytest.mark.slow  # starts Spark three times
def test_the_tutorial_ends_with_rows(tmp_path: Path, free_ports: dict[str, str]):  # noqa: F811
    """Both terminals, copied as they stand: the table has the rows that the page shows, what was
    changed in between included, and `verify` finds nothing wrong with them."""
    first, mirror, change, show, _signals = blocks(PAGE, "sh")
    seed = blocks(PAGE, "toml")[0]
    home = tmp_path / "home" / "sfpubsub-mirror"
    home.mkdir(parents=True)
    (home / "org.toml").write_text(seed)
    # The jars of Delta, which are a download for who has none yet.
    (home.parent / ".cache").symlink_to(Path.home() / ".cache")
    rows, _ = blocks(PAGE, "text")
    second = f"set -e\n{mirror}{change}{show}"
    with terminal(first, tmp_path, free_ports) as emulator:
        assert json.loads(emulator.stdout.readline())["grpc"].endswith(f":{free_ports['7011']}")
        with terminal(second, tmp_path, free_ports) as tour:
            out, err = tour.communicate(timeout=PATIENCE)
    assert tour.returncode == 0, err
    assert out.endswith(rows)
    assert "Traceback" not in err
    printed = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    (verified,) = [each for each in printed if "compared" in each]
    assert (verified["compared"], verified["different"]) == (3, {})
