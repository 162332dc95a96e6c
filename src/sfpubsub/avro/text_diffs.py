"""Apply unified diffs, which a change event may contain in place of a large text.

Pure functions. Invariant: the result is either the text with the given hash, or None.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*")

# Written by `diff` after a last line that has no line feed.
_NO_LINE_FEED = "\\"


def patched(old: str, diff: str, sha256: str) -> str | None:
    """Apply a diff to a text, and return the new text.

    The service's documentation defines the hash of the new text, but not how a diff treats line
    endings. So the hash decides: a text with a different hash is not returned.

    Args:
        old: The text before the change.
        diff: A unified diff with its two header lines.
        sha256: SHA-256 of the new text in UTF-8, in hexadecimal.

    Returns:
        The new text, or None if the diff does not apply to *old* or the result has a different
        hash.
    """
    new = _patched_lines(old.split("\n"), diff.split("\n")[2:])
    if new is None:
        return None
    text = "\n".join(new)
    found = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return text if found == sha256.lower() else None


def _patched_lines(old: list[str], diff: list[str]) -> list[str] | None:
    """Apply the hunks in *diff* to the lines *old*; return None if a hunk does not fit.

    The old lines in the diff are not compared with *old*, because the hash verifies the result.
    """
    new: list[str] = []
    place = 0  # index of the next old line
    lines = iter(diff)
    for line in lines:
        if not line or line.startswith(_NO_LINE_FEED):
            continue
        match = _HUNK.fullmatch(line.rstrip("\r"))
        if match is None:
            return None
        first, count = int(match[1]), int(match[2] or 1)
        # A hunk without old lines is inserted after the line with its number.
        start = first if count == 0 else first - 1
        if not place <= start <= len(old):
            return None
        new += [*old[place:start], *_new_lines(lines, count, int(match[4] or 1))]
        place = start + count
    return new + old[place:]


def _new_lines(lines: Iterator[str], olds: int, news: int) -> Iterator[str]:
    """Yield the new lines of one hunk, whose length is given by the line counts in its header."""
    while olds > 0 or news > 0:
        line = next(lines, None)
        if line is None:
            return
        mark = line[:1] or " "  # an empty context line without its leading space
        if mark == _NO_LINE_FEED:
            continue
        olds -= mark != "+"
        news -= mark != "-"
        if mark != "-":
            yield line[1:]
