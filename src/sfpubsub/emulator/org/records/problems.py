"""Why a change of a record or a query is refused. Codes and texts are Salesforce's own."""

from __future__ import annotations


class RecordProblem(Exception):  # noqa: N818 - an answer, not a bug
    """A change or a query is refused.

    Args:
        code: The errorCode.
        text: The message.
        *fields: Which fields are at fault.
        status: The HTTP status that goes with it where a single record is asked for.

    Attributes:
        text: The message.
    """

    def __init__(self, code: str, text: str, *fields: str, status: int = 400) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.fields = fields
        self.status = status


def no_object(name: str) -> RecordProblem:
    """There is no such object."""
    return RecordProblem(
        "INVALID_TYPE",
        f"sObject type '{name[:80]}' is not supported. If you are attempting to use a custom"
        " object, be sure to append the '__c' after the entity name. Please reference your WSDL or"
        " the describe call for the appropriate names.",
    )


def no_record(record_id: str) -> RecordProblem:
    """There is no such record, or the user may not see it."""
    text = f"Provided external ID field does not exist or is not accessible: {record_id[:80]}"
    return RecordProblem("NOT_FOUND", text, status=404)


def is_deleted() -> RecordProblem:
    """The record is in the Recycle Bin."""
    return RecordProblem("ENTITY_IS_DELETED", "entity is deleted", status=404)


def no_field(name: str, of: str) -> RecordProblem:
    """A value is given for a field that the object does not have."""
    text = f"No such column '{name[:80]}' on sobject of type {of}"
    return RecordProblem("INVALID_FIELD", text)


def no_column(name: str, of: str) -> RecordProblem:
    """A query names a field that the object does not have."""
    text = (
        f"No such column '{name[:80]}' on entity '{of}'. If you are attempting to use a custom"
        " field, be sure to append the '__c' after the custom field name. Please reference your"
        " WSDL or the describe call for the appropriate names."
    )
    return RecordProblem("INVALID_FIELD", text)
