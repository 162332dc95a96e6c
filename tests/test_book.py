"""Tests that the reference documents every public name, and that its tables match the code."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter

import grpc
import pytest

import sfpubsub
from sfpubsub import errors
from sfpubsub.protocol.events import FailureKind
from sfpubsub.transports.status import BY_CODE, BY_STATUS

from .pages import DOCS, ROOT, page

LISTS = re.compile(r"^```\{python-api\} (\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)

# Modules whose names in __all__ are public.
PUBLIC = ("sfpubsub", "sfpubsub.rest", "sfpubsub.spark", "sfpubsub.streaming", "sfpubsub.testing")
PUBLIC += ("sfpubsub.tooling",)


def listed() -> list[str]:
    """Return every name that the reference documents, with its module."""
    return [
        f"{module}.{name}"
        for path in sorted((DOCS / "reference").glob("python*.md"))
        for module, names in LISTS.findall(path.read_text(encoding="utf-8"))
        for name in names.split()
    ]


def found(path: str) -> object:
    """Import the object with this dotted path, and return it."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_public_name_is_in_the_reference():
    """The reference documents every public name, and none of them twice."""
    names = listed()
    assert [name for name, times in Counter(names).items() if times > 1] == []
    things = [found(name) for name in names]
    missing = {
        f"{module}.{name}"
        for module in PUBLIC
        for name in importlib.import_module(module).__all__
        if not name.startswith("__")
        and not any(found(f"{module}.{name}") is thing for thing in things)
    }
    assert missing == set()


@pytest.mark.parametrize("name", [name for name in listed() if inspect.isclass(found(name))])
def test_every_documented_class_and_method_has_a_docstring(name):
    """Each class in the reference, and each of its public methods, has a docstring.

    Autodoc would leave it out otherwise.
    """
    documented = found(name)
    assert inspect.getdoc(documented), name
    bare = [
        member
        for base in documented.__mro__
        if base.__module__.startswith("sfpubsub.")
        for member, value in vars(base).items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod)))
        and not inspect.getdoc(getattr(documented, member))
    ]
    assert bare == []


def test_every_error_is_public():
    """Every error of the package can be imported from `sfpubsub`, so users can catch it by name."""
    raised = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.SfPubSubError)
    }
    assert raised <= set(sfpubsub.__all__)


# The page's words for each kind; TURNED_AWAY applies only to failures without an error code.
WORDS = {
    FailureKind.RETRY: "retries",
    FailureKind.REAUTHENTICATE: "signs in again",
    FailureKind.STOP: "stops",
    FailureKind.POSITION_REJECTED: "stops, or continues at `replay_fallback`",
    FailureKind.SLOT_HELD: "waits for the slot",
}


def test_the_error_code_table_matches_the_code():
    """The errors page has a row for each code, in order, with the client's reaction and the
    exception.
    """
    rows = re.findall(
        r"^\| `([a-z.]+)` \| [^|]+ \| ([^|]+): `(\w+)` \| [^|]+ \|$",
        page("errors").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert rows == [(code, WORDS[rule.kind], rule.error.__name__) for code, rule in BY_CODE.items()]


def test_the_errors_page_has_every_grpc_status():
    """The errors page has every gRPC status except OK, with the client's reaction to it."""
    text = page("errors").read_text(encoding="utf-8")
    _, _, table = text.partition("## Failures without an error code")
    row_of = {
        status: does
        for statuses, does in re.findall(r"^\| ([A-Z_, ]+) \| ([^|]+) \|$", table, re.MULTILINE)
        for status in statuses.split(", ")
    }
    assert row_of.keys() == {status.name for status in grpc.StatusCode} - {"OK"}
    for status, rule in BY_STATUS.items():
        word = WORDS.get(rule.kind, "retries within `connection_timeout`")
        assert row_of[status.name].startswith(word), status


def test_the_files_named_as_evidence_exist():
    """Every test, script, benchmark and source file that the documentation names exists, and in it
    the test that is named with it.
    """
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        for named, test in re.findall(
            r"`((?:tests|scripts|benchmarks|src)/[\w/]+\.(?:py|sh))(?:::(\w+))?`", path.read_text()
        ):
            assert (ROOT / named).is_file(), f"{path.name}: {named}"
            text = (ROOT / named).read_text(encoding="utf-8")
            assert f"def {test}(" in text or not test, f"{path.name}: {named}::{test}"


def test_the_tree_of_errors_matches_the_classes():
    """The tree in the docstring of `errors`, which the errors page includes, shows every error
    below its parent class.
    """
    tree = inspect.getdoc(errors).partition("::\n\n")[2].partition("\n\n")[0]
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in tree.splitlines():
        found = re.search(r"\w+", line)
        assert found is not None
        depth = (found.start() - 4) // 5  # four columns of indentation, five for each level
        path[depth:] = [found[0]]
        drawn[found[0]] = path[depth - 1] if depth else ""
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    ours = [each for each in classes if issubclass(each, errors.SfPubSubError)]
    assert drawn == {
        each.__name__: each.__bases__[0].__name__ if each is not errors.SfPubSubError else ""
        for each in ours
    }
