"""What an error of a request to the org about one object stops."""

from __future__ import annotations

import enum

from sfpubsub.errors import (
    AuthenticationError,
    QuotaExceededError,
    ReadExpiredError,
    RequestRefusedError,
    SfPubSubError,
    StreamUnavailableError,
    WriteError,
)

# Error codes for an object that does not exist, or that the user cannot see: of a describe request
# or a read by id, of a query, and of a Bulk job (Salesforce documentation, status codes).
_GONE = frozenset({"NOT_FOUND", "INVALID_TYPE", "INVALIDENTITY"})


class Scope(enum.Enum):
    """What an error stops."""

    MIRROR = "mirror"
    """Everything: nobody is signed in, a table cannot be written, or it is a bug."""
    ORG = "org"
    """All requests, for a while: the org is not available, or its limit of calls is used up."""
    OBJECT = "object"
    """Reads of one object, for a while."""
    GONE = "gone"
    """Reads of one object, until the org has it again."""


def scope_of(error: BaseException) -> Scope:
    """Return what an error of a request about one object stops."""
    if isinstance(error, (QuotaExceededError, StreamUnavailableError)):
        return Scope.ORG
    if isinstance(error, AuthenticationError):
        return Scope.ORG if error.retryable else Scope.MIRROR
    if isinstance(error, WriteError) or not isinstance(error, SfPubSubError):
        return Scope.MIRROR
    if isinstance(error, RequestRefusedError) and not isinstance(error, ReadExpiredError):
        return Scope.GONE if error.error_code in _GONE else Scope.OBJECT
    return Scope.OBJECT
