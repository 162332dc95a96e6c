"""Errors that are reported to users and clients of an emulator. Each message is one line."""

from __future__ import annotations


class EmulatorProblem(Exception):  # noqa: N818 - a report to the user, not a bug
    """Raised if an emulator cannot start, or cannot do what was requested. The message also states
    how to correct the error.
    """


class SeedError(EmulatorProblem):
    """Raised if a seed cannot be used. The message names the file and the item, and states how to
    correct the error.
    """


class BadValue(ValueError):  # noqa: N818 - an answer, not a bug
    """Raised if a value from a client is not valid.

    Args:
        code: The errorCode of the REST API.
        text: The message.
        field: Name of the invalid field in the request.
    """

    def __init__(self, code: str, text: str, field: str) -> None:
        self.code = code
        self.field = field
        super().__init__(text)
