"""Forms generated from Avro schemas, with a control for each field of an event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sfpubsub.emulator.page.markup import Markup, labelled, tag

Kind = Literal["text", "whole", "number", "truth", "choice", "json"]

_KINDS: dict[str, Kind] = {
    "string": "text",
    "int": "whole",
    "long": "whole",
    "float": "number",
    "double": "number",
    "boolean": "truth",
    "enum": "choice",
}

_FILLED_IN = frozenset({"CreatedDate", "CreatedById"})
"""Fields that the org sets itself."""

_HEADER = "ChangeEventHeader"

_EXAMPLES = {_HEADER: {"changeType": "CREATE", "recordIds": ["001SB0000000001AAA"]}}
"""Initial values of controls, by field name."""


class Unreadable(ValueError):  # noqa: N818 - an answer to a person
    """Raised if the text in a form control is not valid. The message is shown to the user."""


@dataclass(frozen=True)
class Field:
    """One field of an event.

    Attributes:
        name: Name of the field.
        kind: Kind of text that the control accepts.
        nullable: Whether a blank control means null.
        note: The field's type, as a hint for the user.
        choices: The symbols of an enum.
    """

    name: str
    kind: Kind
    nullable: bool
    note: str
    choices: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The HTML id of the field's form control."""
        return f"field-{self.name}"

    def control(self, entered: str) -> Markup:
        """Return a form control for the field, with its label, that shows the text *entered*."""
        shared: dict[str, Any] = {"id": self.id, "name": self.name}
        if self.kind in ("truth", "choice"):
            options = ("true", "false") if self.kind == "truth" else self.choices
            blank = [tag("option", "null", value="")] if self.nullable else []
            chosen = (tag("option", item, selected=item == entered) for item in options)
            made = tag("select", *blank, *chosen, **shared)
        elif self.kind == "json":
            made = tag("textarea", entered, rows=4, spellcheck="false", **shared)
        else:
            mode = {"whole": "numeric", "number": "decimal"}.get(self.kind)
            made = tag("input", type="text", value=entered, inputmode=mode, **shared)
        hint = f"{self.note}{'; blank is null' if self.nullable else ''}"
        return labelled(self.name, made, self.id, hint)

    def value(self, entered: str) -> Any:
        """Convert the text of the form control to the type of the field.

        Raises:
            Unreadable: The text is not valid for the field.
        """
        try:
            if self.kind == "whole":
                return int(entered)
            if self.kind == "number":
                return float(entered)
            if self.kind == "json":
                return json.loads(entered)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"{self.name} is not {_SAID[self.kind]}: {entered[:80]!r}") from error
        return entered == "true" if self.kind == "truth" else entered


_SAID: dict[Kind, str] = {"whole": "a whole number", "number": "a number", "json": "JSON"}


def fields_of(schema: str) -> list[Field]:
    """Return the form fields for an Avro schema, given as JSON. Fields that the org fills in are
    omitted.
    """
    return [_field(item) for item in json.loads(schema)["fields"] if item["name"] not in _FILLED_IN]


def examples(fields: list[Field]) -> dict[str, str]:
    """Return the initial contents of the form controls, by field name."""
    return {
        field.name: json.dumps(_EXAMPLES[field.name]) for field in fields if field.name in _EXAMPLES
    }


def values_of(fields: list[Field], entered: Mapping[str, str]) -> dict[str, Any]:
    """Convert the input of a form to the values of an event, by field name. Blank nullable fields
    are omitted.

    Raises:
        Unreadable: A value is not valid for its field.
    """
    return {
        field.name: field.value(entered[field.name])
        for field in fields
        if field.name in entered and (entered[field.name] or not field.nullable)
    }


def _field(item: Mapping[str, Any]) -> Field:
    branches = item["type"] if isinstance(item["type"], list) else [item["type"]]
    real = [branch for branch in branches if branch != "null"]
    nullable = len(real) < len(branches)
    only = real[0] if len(real) == 1 else None
    name = only.get("type") if isinstance(only, dict) else only
    kind = _KINDS.get(name, "json") if isinstance(name, str) else "json"
    choices = tuple(only["symbols"]) if kind == "choice" and isinstance(only, dict) else ()
    return Field(str(item["name"]), kind, nullable, _note(item.get("doc", ""), kind), choices)


def _note(doc: str, kind: Kind) -> str:
    """Return a hint for a field: the Salesforce type in its doc (`Data:Text:00N…`), or, if the doc
    has none, the kind of text to enter.
    """
    parts = str(doc).split(":")
    said = parts[1] if len(parts) > 1 else {"text": "Text"}.get(kind, _SAID.get(kind, kind))
    if said in ("DateTime", "Date", "Time") and kind == "whole":
        return f"{said}, in milliseconds" + ("" if said == "Time" else " since the epoch")
    return f"{said}, as JSON" if kind == "json" and said != "JSON" else said
