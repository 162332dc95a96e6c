"""Words of the commands for people."""

from __future__ import annotations

import pytest

from sfpubsub.cli.words import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "row", "0 rows"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (7, "gap", "7 gaps"),
    ],
)
def test_a_count_has_its_plural(number, noun, text):
    """One is told in the singular, none and many are not."""
    assert counted(number, noun) == text
