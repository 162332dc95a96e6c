"""The record pages, which show all objects, the records of one object, and one record with a form.

Forms are generated from the fields of the object; the org validates the values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from sfpubsub.emulator.http.exchange import Answer, Problem
from sfpubsub.emulator.org.accounts import User
from sfpubsub.emulator.org.bus import Topic
from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.page import topics
from sfpubsub.emulator.page.markup import Markup, button, labelled, table, tag
from sfpubsub.emulator.page.visit import Visit, back_to, facts, link

PLACE = "/ui/records"
ONE = "/ui/record"

_SHOWN = 50
"""Maximum number of records on an object's page, which lists the last changed ones."""

_COLUMNS = 4
"""Maximum number of columns in the list of records."""

_LONG = 255
"""Text fields longer than this, in characters, get a control with several lines."""

_OBJECT, _ID, _BEFORE = "form-object", "form-id", "form-before"
"""Names of controls that are not fields; the names of fields contain no hyphen. The last control
contains the values that the form showed initially, as JSON.
"""

_CHANGES = 5
"""Maximum number of change events that are listed above the form of a record."""

_ORIGIN = "com/salesforce/api/rest/62.0;client=page"
"""The `changeOrigin` in the header of change events for changes made on these pages."""


def records(visit: Visit) -> Answer:
    """GET /ui/records: list all objects, or, with ?object=…, the records of one object."""
    name = visit.query.get("object", "")
    if name:
        return _object_page(visit, _describe(visit, name))
    world = visit.world
    rows = [
        [
            tag("a", of.label, href=link(PLACE, object=of.name)),
            tag("code", of.name),
            f"{_count(visit, of):,}",
            _topic_link(visit, of),
        ]
        for of in map(world.records.describe, world.records.objects())
    ]
    heads = ["Object", "API name", "Records", "Changes"]
    return visit.page("Records", table("Objects of the org", heads, rows, "objects"))


def create(visit: Visit) -> Answer:
    """POST /ui/records: create a record."""
    entered = visit.guard.form(visit.call)
    of = _describe(visit, entered.get(_OBJECT, ""))
    given = {
        field.name: entered[field.name] for field in _asked(of, new=True) if entered.get(field.name)
    }
    try:
        made = visit.world.records.create(of.name, given, _user(visit), _ORIGIN)
    except RecordProblem as problem:
        return _object_page(visit, of, entered, problem.text)
    return back_to(ONE, "created", object=of.name, id=made)


def record(visit: Visit) -> Answer:
    """GET /ui/record?object=…&id=…: show a record and its form."""
    return _record_page(visit, _describe(visit, visit.query.get("object", "")))


def change(visit: Visit) -> Answer:
    """POST /ui/record: save the fields that the user changed, or delete the record."""
    entered = visit.guard.form(visit.call)
    of = _describe(visit, entered.get(_OBJECT, ""))
    key = entered.get(_ID, "")
    try:
        if entered.get("form-do") == "delete":
            visit.world.records.delete(of.name, key, _user(visit), _ORIGIN)
            return back_to(PLACE, "deleted", object=of.name)
        given = _changed(_asked(of, new=False), entered)
        visit.world.records.update(of.name, key, given, _user(visit), _ORIGIN)
    except RecordProblem as problem:
        return _record_page(visit, of, key, entered, problem.text)
    return back_to(ONE, "saved", object=of.name, id=key)


def _object_page(
    visit: Visit, of: SObject, entered: Mapping[str, str] | None = None, problem: str = ""
) -> Answer:
    columns = _columns(of)
    text = (
        f"SELECT {', '.join(dict.fromkeys(['Id', *columns]))} FROM {of.name}"  # noqa: S608 - names
        f" ORDER BY LastModifiedDate DESC LIMIT {_SHOWN}"
    )
    found = visit.world.records.query(text, _user(visit))
    rows = [
        [
            tag(
                "a",
                _shown(row[columns[0]]) or row["Id"],
                href=link(ONE, object=of.name, id=row["Id"]),
            ),
            *(_shown(row[name]) for name in columns[1:]),
        ]
        for row in found.rows
    ]
    fields = _asked(of, new=True)
    values = entered if entered is not None else {f.name: _shown(f.default) for f in fields}
    form = tag(
        "details",
        tag("summary", f"New {of.label}"),
        visit.form(
            PLACE,
            tag("input", type="hidden", name=_OBJECT, value=of.name),
            _controls(fields, values),
            tag("p", button("Create")),
            label=f"New {of.label}",
        ),
        open=entered is not None,
        id="new",
    )
    count = _count(visit, of)
    caption = f"{len(rows)} of {count:,} records, last changed first" if count else "No records yet"
    listed = table(caption, columns, rows, "records")
    found_topic = _topic(visit, of)
    parts = (form, listed, *_changes(visit, found_topic, _SHOWN))
    return visit.page(of.plural, *parts, problem=problem, live=_live(visit, found_topic))


def _record_page(
    visit: Visit,
    of: SObject,
    key: str = "",
    entered: Mapping[str, str] | None = None,
    problem: str = "",
) -> Answer:
    row = _get(visit, of, key or visit.query.get("id", ""))
    fields = _asked(of, new=False)
    asked = {field.name for field in fields}
    values = {name: _shown(value) for name, value in row.items()} if entered is None else entered
    hidden = (
        tag("input", type="hidden", name=_OBJECT, value=of.name),
        tag("input", type="hidden", name=_ID, value=row["Id"]),
    )
    before = json.dumps({name: _shown(row.get(name)) for name in sorted(asked)})
    if entered is not None:  # after an error: keep the values that the form showed initially
        before = entered.get(_BEFORE, before)
    form = visit.form(
        ONE,
        *hidden,
        tag("input", type="hidden", name=_BEFORE, value=before),
        _controls(fields, values),
        tag("p", button("Save", name="form-do", value="save")),
        label=f"Edit {of.label}",
    )
    removal = visit.form(
        ONE,
        *hidden,
        tag("p", button("Delete", name="form-do", value="delete")),
        label=f"Delete {of.label}",
    )
    others = {
        field.name: _shown(row.get(field.name))
        for field in of.fields
        if field.name not in asked and row.get(field.name) is not None
    }
    name = next((_shown(row[item]) for item in _columns(of)[:1]), "") or row["Id"]
    back = tag("p", tag("a", f"All {of.plural}", href=link(PLACE, object=of.name)))
    title = f"{of.label} {name}"
    found = _topic(visit, of)
    changes = _changes(visit, found, _CHANGES)
    parts = (back, *changes, tag("h2", "Fields"), form, facts(**others), removal)
    return visit.page(title, *parts, problem=problem, live=_live(visit, found))


def _changed(fields: Sequence[Field], entered: Mapping[str, str]) -> dict[str, str | None]:
    """Return the values of the fields that the user changed in a form, by field name. Other fields
    are not written, because somebody else may have changed them since the form was loaded.

    Raises:
        RecordProblem: The form does not contain the values that it showed initially.
    """
    try:
        before = json.loads(entered.get(_BEFORE, ""))
        shown = {name: str(text) for name, text in before.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        reason = "the form is incomplete: load the page again"
        raise RecordProblem("JSON_PARSER_ERROR", reason) from error
    given: dict[str, str | None] = {}
    for field in fields:
        text = entered.get(field.name)
        if text is not None and _sent(field, text) != _sent(field, shown.get(field.name, "")):
            given[field.name] = text.replace("\r\n", "\n") or None
    return given


def _sent(field: Field, text: str) -> str:
    """Return a string as a browser submits it if the user does not edit it, but with LF as the line
    ending. Unedited values thus compare equal. A browser converts line endings, removes a line
    ending at the start of a text area, and removes all line endings from a control with one line.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return lines.removeprefix("\n") if _is_long(field) else lines.replace("\n", "")


def _is_long(field: Field) -> bool:
    return field.type == "textarea" and field.length > _LONG


def _changes(visit: Visit, found: Topic | None, most: int) -> tuple[Markup, ...]:
    """Return a heading and the list of an object's newest change events, which is updated while the
    page is open. Return an empty tuple if the object has no topic (*found* is None).
    """
    if found is None:
        return ()
    return topics.last_events(visit.world, found, f"Changes on {found.name}", most)


def _live(visit: Visit, found: Topic | None) -> str:
    return topics.live_of(visit.world, found) if found is not None else ""


def _controls(fields: Sequence[Field], values: Mapping[str, str]) -> Markup:
    return tag(
        "div", *(_control(field, values.get(field.name, "")) for field in fields), class_="grid"
    )


def _control(field: Field, entered: str) -> Markup:
    id_ = f"field-{field.name}"
    shared: dict[str, Any] = {"id": id_, "name": field.name}
    choices: tuple[str, ...] = field.picklist_values
    if field.type == "boolean":
        choices = ("false", "true")
    if choices and field.type != "multipicklist":
        # The current value is offered even if it is not in the picklist, so that saving keeps it.
        offered = dict.fromkeys((*([] if field.type == "boolean" else [""]), *choices, entered))
        made = tag(
            "select",
            *(tag("option", item, value=item, selected=item == entered) for item in offered),
            **shared,
        )
    elif _is_long(field):
        made = tag("textarea", entered, rows=3, **shared)
    else:
        made = tag("input", type="text", value=entered, inputmode=_MODES.get(field.type), **shared)
    return labelled(field.label, made, id_, _hint(field))


_MODES = {
    "int": "numeric",
    "double": "decimal",
    "currency": "decimal",
    "percent": "decimal",
    "email": "email",
    "phone": "tel",
    "url": "url",
}
"""The `inputmode` of a control, which selects a phone's keyboard, by field type."""

_WRITTEN = {
    "date": "date, 2026-01-31",
    "datetime": "date and time, 2026-01-31T12:00:00Z",
    "time": "time, 12:00:00Z",
    "multipicklist": "values separated by ;",
}


def _hint(field: Field) -> str:
    parts = [field.name, _WRITTEN.get(field.type, field.type)]
    if field.reference_to:
        parts[-1] = f"id of {' or '.join(field.reference_to)}"
    if not field.nillable and field.type != "boolean":
        parts.append("required")
    return "; ".join(parts)


def _asked(of: SObject, *, new: bool) -> list[Field]:
    """Return the fields that a user can set, in a new record if *new*, else in an existing one."""
    may: Callable[[Field], bool] = lambda f: f.createable if new else f.updateable  # noqa: E731
    return [field for field in of.fields if may(field) and field.is_stored]


def _columns(of: SObject) -> list[str]:
    """Return the names of the fields that the list of records shows, the record's name first."""
    names = [
        field.name
        for field in _asked(of, new=True)
        if field.type not in ("textarea", "reference") and not field.compound
    ]
    called = [name for name in ("Name", "Subject") if of.field(name) is not None]
    return [*called, *(name for name in names if name not in called)][:_COLUMNS]


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(str(part) for part in value.values() if part is not None)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _describe(visit: Visit, name: str) -> SObject:
    try:
        return visit.world.records.describe(name)
    except RecordProblem as problem:
        raise Problem(HTTPStatus.NOT_FOUND, problem.text) from problem


def _get(visit: Visit, of: SObject, key: str) -> dict[str, Any]:
    try:
        return visit.world.records.get(of.name, key)
    except RecordProblem as problem:
        raise Problem(HTTPStatus.NOT_FOUND, problem.text) from problem


def _count(visit: Visit, of: SObject) -> int:
    text = f"SELECT COUNT() FROM {of.name}"  # noqa: S608 - a checked name
    return visit.world.records.query(text, _user(visit)).total


def _user(visit: Visit) -> User:
    """Return the org's first user, who makes all changes on the record pages."""
    return visit.world.accounts.holder("")


def _topic(visit: Visit, of: SObject) -> Topic | None:
    """Return the topic of an object's change events, or None if the object is not selected for
    Change Data Capture.
    """
    if not of.change_events:
        return None
    return next((item for item in visit.world.bus.topics() if item.name == of.topic), None)


def _topic_link(visit: Visit, of: SObject) -> str | Markup:
    found = _topic(visit, of)
    return tag("a", found.name, href=link(topics.PLACE, name=found.name)) if found else "none"
