"""What keeps an emulator from starting. Each text is one line that says what to do."""

from __future__ import annotations


class EmulatorProblem(Exception):  # noqa: N818 - a report to a person, not a bug
    """An emulator cannot start."""


class SeedError(EmulatorProblem):
    """A seed cannot be used; the text names the file, the item in it, and what to do."""
