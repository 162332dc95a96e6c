"""Builds HTML. Text is always escaped, unless it is `Markup`."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """HTML that is safe to include in a page. Create it with `tag` or `joined`, never directly from
    data.
    """

    __slots__ = ()


_VOID = frozenset({"input", "link", "meta", "br"})
"""Elements without an end tag."""


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: Name of the element; fixed text, never data.
        children: Markup, or other values, whose text is escaped; None is skipped.
        attributes: `class_` is written as class, `data_x` as data-x. An attribute that is None or
            False is omitted; True is written without a value.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        parts.append(f" {shown}" if value is True else f' {shown}="{html.escape(str(value))}"')
    parts.append(">")
    if name not in _VOID:
        parts += [joined(children), f"</{name}>"]
    return Markup("".join(parts))


def joined(children: Iterable[object]) -> Markup:
    """Return the concatenation of children, which are escaped or skipped as in `tag`."""
    return Markup("".join(_escaped(child) for child in children if child is not None))


def _escaped(child: object) -> str:
    if isinstance(child, Markup):
        return child
    return html.escape(str(child))


def table(caption: str, heads: Iterable[str], rows: Iterable[Iterable[object]], id_: str) -> Markup:
    """Return a table; narrow screens show each row as a card. The first cell of a row is a heading.

    Args:
        caption: The table's caption.
        heads: The headings of the columns.
        rows: The cells of each row, one for each heading.
        id_: Id of the table's body, which updates can replace.
    """
    heads = list(heads)
    head = tag("tr", *(tag("th", text, scope="col") for text in heads))
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", head),
            tag("tbody", table_rows(heads, rows), id=id_),
        ),
        class_="wide",
    )


def table_rows(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> Markup:
    """Return the rows of a `table`, or a single row with the text "None." if there are no rows."""
    heads = list(heads)
    made = [
        tag(
            "tr",
            *(
                tag("td" if index else "th", cell, data_label=head, scope=None if index else "row")
                for index, (head, cell) in enumerate(zip(heads, row, strict=True))
            ),
        )
        for row in rows
    ]
    return joined(made or [tag("tr", tag("td", "None.", colspan=len(heads), class_="none"))])


def live(id_: str, content: object) -> Markup:
    """Return *content* in an element with the id *id_*. While the page is open, updates can replace
    the content of this element (`PageUpdate.places`).
    """
    return tag("span", content, id=id_)


def button(text: str, *, name: str | None = None, value: object = None) -> Markup:
    """Return a button that submits its form, with *name* and *value* as an additional field."""
    return tag("button", text, type="submit", name=name, value=value)


def labelled(label: str, control: Markup, id_: str, hint: str = "") -> Markup:
    """Return a form control with its label and, unless *hint* is blank, a hint below it."""
    return tag(
        "div",
        tag("label", label, for_=id_),
        control,
        tag("p", hint, class_="hint", id=f"{id_}-hint") if hint else None,
        class_="field",
    )
