"""Find documentation pages by name, and extract their code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def page(name: str) -> Path:
    """Return the path of the only page with this name, in any directory of docs/."""
    (found,) = DOCS.rglob(f"{name}.md")
    return found


def blocks(path: Path, language: str) -> list[str]:
    """Return the contents of all code blocks of a page in a given language, in order."""
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
