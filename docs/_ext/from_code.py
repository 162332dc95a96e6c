"""Parts of pages that are made of the code, so that they cannot say anything else than it does.

A page asks for a part by a comment in a line of its own, ``<!-- from the code: commands -->``,
which is replaced by Markdown before the page is parsed: so headings of it are headings of the page,
and can be linked to. Names of Python are listed in the directive ``python-api``, which documents
each by its docstring.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import drawings
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from sfpubsub.cli.main import COMMANDS, cli
from sfpubsub.cli.service import connection_options

ROOT = Path(__file__).parents[2]
PART = re.compile(r"^<!-- from the code: ([\w-]+) -->$", re.MULTILINE)


def commands() -> str:
    """Return the reference of the command line: what --help says of each command."""
    context = click.Context(cli, info_name="sfpubsub")
    found = [_command(cli, context, 2)]
    found += [_inner(cli, context, name, 2) for name in sorted(COMMANDS)]
    found += ["## Connection options", _table(connection_options())]
    return "\n\n".join(found)


def _inner(group: click.Group, context: click.Context, name: str, level: int) -> str:
    command = group.get_command(context, name)
    if command is None:
        raise LookupError(f"{context.command_path} lists {name} and has no such command")
    return _command(command, click.Context(command, context, name), level)


def _command(command: click.Command, context: click.Context, level: int) -> str:
    """Return the section of a command and of those in it."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [
        f"{'#' * level} {context.command_path}",
        f"```text\n{usage}\n```",
        _prose(command.help or ""),
    ]
    options = [*filter(None, (p.get_help_record(context) for p in command.params))]
    if options:
        parts.append(_table(options))
    if isinstance(command, click.Group) and command is not cli:
        names = command.list_commands(context)
        parts += [_inner(command, context, name, level + 1) for name in names]
    return "\n\n".join(part for part in parts if part)


def _table(options: list[tuple[str, str]]) -> str:
    rows = [f"| `{names}` | {_cell(meaning)} |" for names, meaning in options]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _prose(text: str) -> str:
    r"""Return a help text as Markdown. Click keeps the lines of a paragraph after ``\b``."""
    found = []
    for paragraph in inspect.cleandoc(text).partition("\f")[0].split("\n\n"):
        if paragraph.startswith("\b\n"):
            found.append(f"```text\n{paragraph[2:]}\n```")
        else:
            found.append(_escaped(" ".join(paragraph.split())))
    return "\n\n".join(found)


def _escaped(text: str) -> str:
    """Return words as Markdown shows them: options are code, other signs are words."""
    text = re.sub(r"(?<![\w`-])(--[a-z][\w-]*)(?!`)", r"`\1`", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([<>*_\[\]])", r"\\\1", part)
        for part in re.split(r"(`[^`]*`)", text)
    )


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "states": drawings.states,
    "layers": lambda: drawings.layers(ROOT / "tests" / "test_layers.py"),
}


def fill_in(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """Put the parts into a page."""
    source[0] = PART.sub(lambda match: PARTS[match.group(1)](), source[0])


class PythonApi(SphinxDirective):
    """Documents names of a module by their docstrings, in the order of the list.

    ``{python-api} sfpubsub`` with a name a line. What an exception inherits is left out.
    """

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return what autodoc makes of the names."""
        module = self.arguments[0]
        lines = ["```{eval-rst}"]
        for name in filter(None, (line.strip() for line in self.content)):
            lines += _autodoc(f"{module}.{name}", getattr(importlib.import_module(module), name))
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def _autodoc(path: str, found: Any) -> list[str]:
    if not inspect.isclass(found):
        kind = "autofunction" if callable(found) and inspect.isfunction(found) else "autodata"
        return [f".. {kind}:: {path}", ""]
    lines = [f".. autoclass:: {path}", "   :members:"]
    if issubclass(found, enum.Enum):
        lines += ["   :undoc-members:"]
    elif not issubclass(found, BaseException):
        inherited = "tuple, dict, object, Generic, Protocol, ABC, DataSource"
        lines += [f"   :inherited-members: {inherited}"]
    else:
        lines += ["   :show-inheritance:"]
    return [*lines, ""]


def find_public(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Lead the name of a thing's own module to the public name under which it is documented.

    Annotations say `sfpubsub.types.positions.ReplayId`, and the pages `sfpubsub.ReplayId`.
    """
    target = node["reftarget"]
    if node.get("refdomain") != "py" or not target.startswith("sfpubsub."):
        return None
    found = _found(target)
    domain = env.domains.python_domain
    for name in domain.objects if found is not None else ():
        if _found(name) is found:
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)
    return None


@functools.cache
def _found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None  # of a class, not of a module


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.add_directive("python-api", PythonApi)
    app.connect("source-read", fill_in)
    app.connect("missing-reference", find_public)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
