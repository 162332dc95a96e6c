"""The pages of the documentation, found by name wherever they are filed, and their code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def page(name: str) -> Path:
    """Return the one page with this name, in whichever part of the book it is."""
    (found,) = DOCS.rglob(f"{name}.md")
    return found


def blocks(path: Path, language: str) -> list[str]:
    """Return the code blocks of a page that are marked with a language, in their order."""
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
