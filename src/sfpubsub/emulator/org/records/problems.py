"""Errors for record changes and queries, with Salesforce's codes and messages."""

from __future__ import annotations

from sfpubsub.emulator.org.soql import Malformed, NotOffered

NOT_OFFERED = "NOT_SUPPORTED_BY_THE_EMULATOR"
"""The code for what an org has and the emulator does not. No org sends it, so it cannot be mistaken
for an org's answer to a mistake. The status is 400, because clients repeat requests after a 5xx.
"""

_STANDARD = {
    "asset", "asyncapexjob", "apexclass", "apextrigger", "attachment", "businesshours", "campaign",
    "campaignmember", "case", "casecomment", "contentdocument", "contentdocumentlink",
    "contentversion", "contract", "document", "emailmessage", "emailtemplate", "entitlement",
    "event", "fielddefinition", "folder", "group", "groupmember", "holiday", "idea", "individual",
    "lead", "note", "opportunitycontactrole", "opportunityhistory", "opportunitylineitem", "order",
    "orderitem", "permissionsetgroup", "pricebook2", "pricebookentry", "product2", "quote",
    "quotelineitem", "report", "solution", "task", "territory2", "topic", "userrole", "workorder",
}  # fmt: skip
"""Standard objects of an org that the default seed does not have, in lower case."""


class RecordProblem(Exception):  # noqa: N818 - an answer, not a bug
    """Raised if a query, a record change or a Bulk API request fails.

    Args:
        code: The errorCode in the response.
        text: The message in the response.
        *fields: Names of the fields that caused the error.
        status: The HTTP status, if the request is for a single record.

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
    """Return the error for an unknown object, or for a standard object that is not in this org."""
    if name.lower() in _STANDARD:
        return not_offered(f"without a definition in its seed, the object {name}")
    return RecordProblem(
        "INVALID_TYPE",
        f"sObject type '{name[:80]}' is not supported. If you are attempting to use a custom"
        " object, be sure to append the '__c' after the entity name. Please reference your WSDL or"
        " the describe call for the appropriate names.",
    )


def no_record(record_id: str) -> RecordProblem:
    """Return the error for a record that does not exist or that the user may not see."""
    text = f"Provided external ID field does not exist or is not accessible: {record_id[:80]}"
    return RecordProblem("NOT_FOUND", text, status=404)


def is_deleted() -> RecordProblem:
    """Return the error for a record in the Recycle Bin."""
    return RecordProblem("ENTITY_IS_DELETED", "entity is deleted", status=404)


def no_field(name: str, of: str) -> RecordProblem:
    """Return the error for a change that sets a field that the object does not have."""
    text = f"No such column '{name[:80]}' on sobject of type {of}"
    return RecordProblem("INVALID_FIELD", text)


def no_column(name: str, of: str) -> RecordProblem:
    """Return the error for a query that uses a field that the object does not have."""
    text = (
        f"No such column '{name[:80]}' on entity '{of}'. If you are attempting to use a custom"
        " field, be sure to append the '__c' after the custom field name. Please reference your"
        " WSDL or the describe call for the appropriate names."
    )
    return RecordProblem("INVALID_FIELD", text)


def not_offered(what: str) -> RecordProblem:
    """Return the error for something that an org has and the emulator does not."""
    return RecordProblem(NOT_OFFERED, f"{what} is not supported by the emulator")


def malformed(error: Malformed) -> RecordProblem:
    """Return the error for a query that cannot be parsed."""
    if isinstance(error, NotOffered):
        return RecordProblem(NOT_OFFERED, str(error))
    return RecordProblem("MALFORMED_QUERY", str(error))
