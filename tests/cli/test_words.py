"""Counts with their nouns, as the commands print them."""

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
def test_count_has_singular_or_plural_noun(number, noun, text):
    """One is followed by the singular; zero and all larger numbers are followed by the plural."""
    assert counted(number, noun) == text
