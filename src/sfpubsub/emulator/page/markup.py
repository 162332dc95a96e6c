"""HTML that is escaped by the way it is made: text is escaped unless `tag` made it."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """HTML that is safe to put into a page. Made by `tag` and `joined` and nowhere else."""

    __slots__ = ()


_VOID = frozenset({"input", "link", "meta", "br"})
"""Elements without an end tag."""


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element.

    Args:
        name: Of the element; fixed text, never data.
        children: Markup, or anything else as text; None is nothing.
        attributes: `class_` is class, `data_x` is data-x; None and False leave one out, True is one
            without a value.
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
    """Several things, one after another."""
    return Markup("".join(_escaped(child) for child in children if child is not None))


def _escaped(child: object) -> str:
    if isinstance(child, Markup):
        return child
    return html.escape(str(child))


def table(caption: str, heads: Iterable[str], rows: Iterable[Iterable[object]], id_: str) -> Markup:
    """A table that a phone shows as cards; the first cell of a row names it.

    Args:
        caption: For screen readers.
        heads: Of the columns.
        rows: Cells; a `td` made elsewhere stays as it is.
        id_: Of its body, which may be put anew.
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
    """Return the rows of a `table`, or one row that says that there are no entries."""
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
    """An element whose content is replaced while somebody looks."""
    return tag("span", content, id=id_)


def button(text: str, *, name: str | None = None, value: object = None) -> Markup:
    """A button that sends its form."""
    return tag("button", text, type="submit", name=name, value=value)


def labelled(label: str, control: Markup, id_: str, hint: str = "") -> Markup:
    """A control with its label and a hint."""
    return tag(
        "div",
        tag("label", label, for_=id_),
        control,
        tag("p", hint, class_="hint", id=f"{id_}-hint") if hint else None,
        class_="field",
    )
