"""Build HTML as a tree, so that all text is escaped on output."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, tostring  # only to build: no XML is parsed


def element(name: str, /, *children: Element | str, **attributes: object) -> Element:
    """Return an HTML element.

    Args:
        name: Tag name.
        children: Child elements and text.
        attributes: Attributes, with ``class_`` for class and ``aria_label`` for aria-label. None
            omits an attribute.
    """
    made = Element(
        name,
        {
            key.rstrip("_").replace("_", "-"): str(value)
            for key, value in attributes.items()
            if value is not None
        },
    )
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + child
        else:
            made.text = (made.text or "") + child
    return made


def table(heads: Iterable[str], rows: Iterable[Iterable[Element | str]]) -> Element:
    """Return a table in a scrollable box. The first cell of each row is its header."""
    head = element("tr", *(element("th", text, scope="col") for text in heads))
    made = [
        element(
            "tr",
            *(
                element("td", cell) if column else element("th", cell, scope="row")
                for column, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    inner = element("table", element("thead", head), element("tbody", *made))
    return element("div", inner, class_="wide", tabindex="0", role="region", aria_label="Table")


def document(root: Element) -> str:
    """Return a complete HTML document."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html")
