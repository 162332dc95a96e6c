"""Errors that are reported to users and clients of an emulator. Each message is one line."""

from __future__ import annotations


class EmulatorProblem(Exception):  # noqa: N818 - a report to the user, not a bug
    """An emulator cannot start, or cannot do what was requested; the message says what to do."""


class SeedError(EmulatorProblem):
    """A seed cannot be used; the message names the file, the item in it, and what to do."""


class BadValue(ValueError):  # noqa: N818 - an answer, not a bug
    """A value from a client is not valid.

    Args:
        code: The REST API's errorCode.
        text: What is wrong.
        field: The member of the request that is not valid.
    """

    def __init__(self, code: str, text: str, field: str) -> None:
        self.code = code
        self.field = field
        super().__init__(text)
