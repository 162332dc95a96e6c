"""Unified diffs of texts: what a change event may carry in place of a large text.

Pure functions. Invariant: a result is the text whose hash the diff names, or None.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*")

# What `diff` writes after a last line that has no line feed.
_NO_LINE_FEED = "\\"


def patched(old: str, diff: str, sha256: str) -> str | None:
    """Return the text that a diff makes of an old one.

    The service documents the hash of the new text and not how it treats the ends of lines, so the
    hash decides: a text with any other one is not returned.

    Args:
        old: The text before.
        diff: A unified diff with its two lines of header.
        sha256: Of the new text in UTF-8, in hexadecimal.

    Returns:
        The new text; None when the diff does not fit *old*, or makes a text with another hash.
    """
    new = _patched_lines(old.split("\n"), diff.split("\n")[2:])
    if new is None:
        return None
    text = "\n".join(new)
    found = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return text if found == sha256.lower() else None


def _patched_lines(old: list[str], diff: list[str]) -> list[str] | None:
    """Put the new lines in the places of the old ones. What these were, the hash tells."""
    new: list[str] = []
    place = 0  # of the next old line
    lines = iter(diff)
    for line in lines:
        if not line or line.startswith(_NO_LINE_FEED):
            continue
        match = _HUNK.fullmatch(line.rstrip("\r"))
        if match is None:
            return None
        first, count = int(match[1]), int(match[2] or 1)
        start = first if count == 0 else first - 1  # a hunk without old lines follows its number
        if not place <= start <= len(old):
            return None
        new += [*old[place:start], *_new_lines(lines, count, int(match[4] or 1))]
        place = start + count
    return new + old[place:]


def _new_lines(lines: Iterator[str], olds: int, news: int) -> Iterator[str]:
    """Yield the new lines of one hunk, until it has as many lines as it says."""
    while olds > 0 or news > 0:
        line = next(lines, None)
        if line is None:
            return
        mark = line[:1] or " "  # a context line that is empty, without its blank
        if mark == _NO_LINE_FEED:
            continue
        olds -= mark != "+"
        news -= mark != "-"
        if mark != "-":
            yield line[1:]
