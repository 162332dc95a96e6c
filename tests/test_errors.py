"""The tree of errors: what survives, and how it reads."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from sfpubsub import errors
from sfpubsub.errors import (
    MissingExtraError,
    PublishError,
    ReplayIdRejectedError,
    SfPubSubError,
    StreamUnavailableError,
)
from sfpubsub.types import Gap, PublishResult, ReplayId

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, SfPubSubError)
]


@pytest.mark.parametrize("cls", CLASSES)
def test_the_drawing_at_the_top_shows_the_class_under_its_parent(cls: type):
    """The picture in the docstring is the tree."""
    lines = errors.__doc__.splitlines()
    depth = {name: line.index(name) for line in lines for name in re.findall(r"\w+Error\b", line)}
    assert cls.__name__ in depth
    if cls is not SfPubSubError:
        parent = next(base for base in cls.__mro__[1:] if base in CLASSES)
        assert depth[parent.__name__] < depth[cls.__name__]


@pytest.mark.parametrize(
    "error",
    [
        StreamUnavailableError("down", error_code="a.b", rpc_id="1"),
        ReplayIdRejectedError("no", gap=Gap("rejected", "/event/X__e", ReplayId(b"a"))),
        PublishError("refused", results=[PublishResult(None, "k", "why")]),
        MissingExtraError("this", "spark"),
        SfPubSubError("other", retryable=True),
    ],
)
def test_an_error_survives_pickling(error: SfPubSubError):
    """Spark and process pools hand errors on by pickle; nothing of them is lost."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
    assert copy.retryable == error.retryable


def test_a_missing_extra_names_it_and_is_an_import_error():
    """The user reads what to install; code that expects an ImportError gets one."""
    error = MissingExtraError("the demo", "spark")
    assert isinstance(error, ImportError)
    assert "pip install 'sfpubsub[spark]'" in str(error)


def test_a_gap_reads_as_a_sentence():
    """What was lost, from where, to where."""
    text = str(Gap("repositioned", "Orders", ReplayId(b"\x01"), ReplayId(b"\x02")))
    assert "Orders" in text
    assert "between 01 and 02" in text
    assert "the start" in str(Gap("unanchored", "Orders"))
