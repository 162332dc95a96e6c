"""Counts with their nouns, as the commands print them."""

from __future__ import annotations

import pytest

from sfpubsub.monitoring.text import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "row", "0 rows"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (7, "gap", "7 gaps"),
    ],
)
def test_count_is_followed_by_a_singular_or_plural_noun(number, noun, text):
    """One takes the singular; zero and all larger numbers take the plural."""
    assert counted(number, noun) == text
