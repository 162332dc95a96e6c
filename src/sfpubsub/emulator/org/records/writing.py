"""Transactions: changes to records that become durable together with their events.

A transaction validates and stores the values from a client, and collects the changes, from which
`changes` builds the events. A rejected change writes nothing, so the transaction can continue with
further changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.records import formulas, values
from sfpubsub.emulator.org.records.changes import Change
from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.records.problems import (
    RecordProblem,
    is_deleted,
    no_field,
    no_record,
)
from sfpubsub.emulator.org.records.table import Row, Table
from sfpubsub.emulator.org.sessions import eighteen

_WHO = "User"
"""The object name of users, who have no table."""


class Org(Protocol):
    """The methods of `Records` that a transaction uses."""

    def table(self, name: str) -> Table:
        """Return the table of the object with this name, ignoring case."""
        ...

    @property
    def deletes_move_stamp(self) -> bool:
        """See `Settings.deletes_move_stamp`."""
        ...

    def number(self, of: SObject) -> int:
        """Return a new row number for an object. A number is never reused, even after its row has
        been deleted.
        """
        ...

    def by_prefix(self, record_id: str) -> SObject | None:
        """Return the object with the key prefix of a record id; None if no object has it."""
        ...

    def is_user(self, record_id: str) -> bool:
        """Return whether this 18-character id is that of a user."""
        ...

    def may_see(self, of: SObject, row: Row, user: User) -> bool:
        """Return whether a user may see a row: any row with View All, otherwise a row that the user
        owns or that has no owner.
        """
        ...

    def missed(self, record_id: str) -> None:
        """Called when a client requests a record that does not exist or that the client's user may
        not see.
        """
        ...


class Transaction:
    """Changes to records by one user. Used by one thread, inside a transaction of the bus.

    Args:
        org: The records.
        user: The user who makes the changes.
        at: The time of the changes, in seconds since the epoch.

    Attributes:
        changes: The changes so far, in order.
    """

    def __init__(self, org: Org, user: User, at: float) -> None:
        self._org = org
        self._user = user
        self._at = values.moment(at)
        self._stamp = values.stamp(at)
        self.changes: list[Change] = []
        self._removals: list[tuple[Table, str]] = []  # applied after their events are published

    def create(self, name: str, given: Mapping[str, Any]) -> str:
        """Create a record.

        Args:
            name: Name of the object.
            given: Values by field name, as sent by a client.

        Returns:
            The record's 18-character id.

        Raises:
            RecordProblem: There is no such object, or the values are not valid.
        """
        table = self._org.table(name)
        of = table.of
        row: Row = {
            item.name: values.keep(item, item.default)
            for item in of.stored
            if item.default is not None
        }
        row |= self._kept(of, given, new=True)
        row.setdefault("OwnerId", self._user.user_id)
        row |= {"CreatedDate": self._at, "CreatedById": self._user.user_id, "IsDeleted": 0}
        row |= self._audit()
        self._complete(table, row, set(row))
        number = self._org.number(of)
        row["Id"] = eighteen(f"{of.key_prefix}SB{number:010d}")
        table.insert(number, row)
        new = {item.name: row.get(item.name) for item in of.stored}
        self.changes.append(Change(of, row["Id"], "CREATE", None, new))
        return str(row["Id"])

    def update(self, name: str, record_id: str, given: Mapping[str, Any]) -> None:
        """Change fields of a record.

        Args:
            name: Name of the object.
            record_id: 15- or 18-character id.
            given: Values by field name, as sent by a client.

        Raises:
            RecordProblem: The record does not exist, or the values are not valid.
        """
        table = self._org.table(name)
        self._change(table, self._row(table, record_id), given)

    def upsert(
        self, name: str, field: str, value: Any, given: Mapping[str, Any]
    ) -> tuple[str, bool]:
        """Update the record with a given external id, or create it.

        Args:
            name: Name of the object.
            field: Name of the external id field, or Id.
            value: The value of that field; an empty Id creates a record.
            given: Values of the other fields by name, as sent by a client.

        Returns:
            The record's id, and whether it was created.

        Raises:
            RecordProblem: There is no such object, the field is not an external id, no record has
                the given Id, several records have the external id, or the values are not valid.
        """
        table = self._org.table(name)
        of = table.of
        item = of.field(field)
        if item is None or not (item.external_id or item.name == "Id"):
            text = "Provided external ID field does not exist or is not accessible"
            raise RecordProblem("NOT_FOUND", f"{text}: {field[:80]}", status=404)
        if item.name in given:
            text = f"The {item.name} field should not be specified in the sobject data."
            raise RecordProblem("INVALID_FIELD", text, item.name)
        kept = values.keep(item, value)
        if item.name == "Id" and kept:
            self._change(table, self._row(table, kept), given)
            return str(kept), False
        if kept is None:
            if item.name != "Id":
                raise RecordProblem("MISSING_ARGUMENT", f"{item.name} not specified")
            return self.create(name, given), True
        found = [
            row
            for row in table.where(f'"{item.name}" = ? AND NOT IsDeleted', [kept])
            if self._org.may_see(of, row, self._user)
        ]
        if len(found) > 1:
            text = f"{item.name}: more than one record found for external id field: "
            raise RecordProblem(
                "DUPLICATE_EXTERNAL_ID",
                f"{text}[{', '.join(row['Id'] for row in found)}]",
                *(row["Id"] for row in found),
                status=300,
            )
        if not found:
            return self.create(name, {**given, item.name: value}), True
        self._change(table, found[0], given)
        return str(found[0]["Id"]), False

    def delete(self, name: str, record_id: str, *, hard: bool = False) -> None:
        """Move a record to the Recycle Bin or, with *hard*, delete it permanently.

        Raises:
            RecordProblem: The record does not exist.
        """
        table = self._org.table(name)
        row = self._row(table, record_id)
        if hard:
            self._removals.append((table, row["Id"]))
        else:
            table.update(row["Id"], {"IsDeleted": 1, **self._audit_of_bin(row)})
        self.changes.append(Change(table.of, row["Id"], "DELETE", row, row))

    def undelete(self, name: str, record_id: str) -> None:
        """Restore a record from the Recycle Bin.

        Raises:
            RecordProblem: The record is not in the Recycle Bin.
        """
        table = self._org.table(name)
        row = table.get(values.full_id(record_id))
        if row is None or not row["IsDeleted"]:
            raise RecordProblem("UNDELETE_FAILED", "Entity is not in the recycle bin", status=404)
        changes = {"IsDeleted": 0, **self._audit_of_bin(row)}
        table.update(row["Id"], changes)
        self.changes.append(Change(table.of, row["Id"], "UNDELETE", row, {**row, **changes}))

    def finish(self) -> None:
        """Remove the rows of permanently deleted records. Call this after the events have been
        published, because publishing evaluates filters on the rows.
        """
        for table, record_id in self._removals:
            table.remove(record_id)

    # Internal.

    def _row(self, table: Table, record_id: str) -> Row:
        """Return the row of a record that the user is about to change.

        Raises:
            RecordProblem: The record does not exist or was deleted, or the user may not see it.
        """
        full = values.full_id(record_id)
        if len(full) == len("001SB0000000001YAA") and not full.startswith(table.of.key_prefix):
            raise RecordProblem(
                "MALFORMED_ID", f"{table.of.label} ID: id value of incorrect type: {full}", "Id"
            )
        row = table.get(full)
        if row is None or not self._org.may_see(table.of, row, self._user):
            self._org.missed(full)
            raise no_record(record_id)
        if row["IsDeleted"]:
            raise is_deleted()
        return row

    def _change(self, table: Table, row: Row, given: Mapping[str, Any]) -> None:
        kept = self._kept(table.of, given, new=False)
        new = {**row, **kept, **self._audit()}
        self._complete(table, new, set(kept))
        changes = {name: value for name, value in new.items() if value != row[name]}
        if changes:
            table.update(row["Id"], changes)
        self.changes.append(Change(table.of, row["Id"], "UPDATE", row, new))

    def _kept(self, of: SObject, given: Mapping[str, Any], *, new: bool) -> Row:
        """Convert the values from a client to the stored format.

        Raises:
            RecordProblem: A field does not exist or cannot be set, or a value is not valid.
        """
        kept: Row = {}
        refused = []
        for name, value in given.items():
            if name == "attributes":  # present in records that were read from the API
                continue
            item = of.field(name)
            if item is None:
                raise no_field(name, of.name)
            if not (item.createable if new else item.updateable):
                refused.append(item.name)
                continue
            if value is None and item.type == "boolean":
                value = False
            kept[item.name] = values.keep(item, value)
        if refused:
            text = (
                f"Unable to create/update fields: {', '.join(refused)}. Please check the security"
                " settings of this field and verify that it is read/write for your profile or"
                " permission set."
            )
            raise RecordProblem("INVALID_FIELD_FOR_INSERT_UPDATE", text, *refused)
        return kept

    def _complete(self, table: Table, row: Row, given: Iterable[str]) -> None:
        """Set the derived fields of a row, and check the row.

        Args:
            table: The table.
            row: The row, which is changed in place.
            given: Names of the fields to check for valid references and for unique values.

        Raises:
            RecordProblem: A required field is empty, a reference is not valid, or a value is not
                unique.
        """
        of = table.of
        for item in of.stored:
            if item.type == "name":
                parts = {part: row.get(holder.name) for part, holder in of.parts(item.name).items()}
                row[item.name] = values.full_name(parts) or None
        row |= computed(of, row)
        missing = [
            item.name
            for item in of.stored
            if not item.nillable and item.createable and row.get(item.name) is None
        ]
        if missing:
            text = f"Required fields are missing: [{', '.join(missing)}]"
            raise RecordProblem("REQUIRED_FIELD_MISSING", text, *missing)
        for name in given:
            found, value = of.field(name), row.get(name)
            if found is None or value is None:
                continue
            if found.type == "reference":
                self._check_reference(found, value)
            if found.unique:
                self._check_unique(table, found, value, row.get("Id"))

    def _check_reference(self, item: Field, record_id: str) -> None:
        if _WHO in item.reference_to and self._org.is_user(record_id):
            return
        of = self._org.by_prefix(record_id)
        if of is not None and of.name in item.reference_to:
            row = self._org.table(of.name).get(record_id)
            if row is not None and not row["IsDeleted"]:
                return
            deleted = row is not None
            raise RecordProblem(
                "ENTITY_IS_DELETED" if deleted else "INVALID_CROSS_REFERENCE_KEY",
                "entity is deleted" if deleted else "invalid cross reference id",
                *(() if deleted else (item.name,)),
            )
        raise RecordProblem(
            "FIELD_INTEGRITY_EXCEPTION",
            f"{item.label}: id value of incorrect type: {record_id}",
            item.name,
        )

    def _check_unique(self, table: Table, item: Field, value: Any, own: Any) -> None:
        for row in table.where(f'"{item.name}" = ? AND NOT IsDeleted', [value]):
            if row["Id"] != own:
                text = f"duplicate value found: {item.name} duplicates value on record with id: "
                raise RecordProblem("DUPLICATE_VALUE", text + row["Id"])

    def _audit(self) -> Row:
        return {
            "LastModifiedDate": self._at,
            "LastModifiedById": self._user.user_id,
            "SystemModstamp": self._stamp,
        }

    def _audit_of_bin(self, row: Row) -> Row:
        """Return the audit fields of a record that is deleted or undeleted."""
        if self._org.deletes_move_stamp:
            return self._audit()
        return {**self._audit(), "SystemModstamp": row["SystemModstamp"]}


def computed(of: SObject, row: Row) -> Row:
    """Return the values of an object's formula fields for a row, by field name."""
    return {
        item.name: _fitting(item, formulas.compute(item.formula, row)) for item in of.calculated
    }


def _fitting(item: Field, value: Any) -> Any:
    if value is None:
        return None
    if item.is_number:
        return value if isinstance(value, (int, float)) else None
    return str(value)[: item.length]
