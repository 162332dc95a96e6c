"""Tests of how much is collected to the driver at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sfpubsub.spark.runtime.driver_memory import bytes_to_collect

MIB = 2**20


def session(**settings: str) -> Any:
    """Return what is used of a session with these settings of the driver."""
    named = {f"spark.driver.{name}": value for name, value in settings.items()}
    return SimpleNamespace(conf=SimpleNamespace(get=lambda key, default: named.get(key, default)))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1024 * MIB // 6),  # three copies in half of Spark's default
        ({"memory": "8g"}, 256 * MIB),
        ({"memory": "8g", "maxResultSize": "64m"}, 32 * MIB),
        ({"memory": "8g", "maxResultSize": "0"}, 256 * MIB),
        ({"memory": "512"}, 512 * MIB // 6),  # without a unit: MiB
        ({"memory": "8G", "maxResultSize": str(10 * MIB)}, 5 * MIB),  # without a unit: bytes
        ({"memory": "600mb"}, 100 * MIB),
    ],
)
def test_a_step_fits_into_the_memory_of_the_session(settings: dict[str, str], expected: int):
    """A step collects no more than a share of the driver's memory, and of the largest result that
    the session allows; with much memory, no more than the engine's own limit.
    """
    assert bytes_to_collect(session(**settings), 256 * MIB) == expected


def test_a_setting_that_is_no_size_is_named():
    """The error shows the value."""
    with pytest.raises(ValueError, match="'much' is not a size"):
        bytes_to_collect(session(memory="much"), MIB)
