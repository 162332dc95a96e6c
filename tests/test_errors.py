"""Tests of the exception classes: their hierarchy, pickling and messages."""

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
def test_the_tree_in_the_docstring_shows_each_class_below_its_parent(cls: type):
    """The tree in the docstring of `errors` contains every class, indented further than
    its parent.
    """
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
    """A pickled error keeps its type, message and attributes, as Spark and process pools need."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
    assert copy.retryable == error.retryable


def test_a_missing_extra_error_is_an_import_error_with_a_command():
    """MissingExtraError is an ImportError whose message contains the pip command that helps."""
    error = MissingExtraError("the demo", "spark")
    assert isinstance(error, ImportError)
    assert "pip install 'sfpubsub[spark]'" in str(error)


def test_a_gap_describes_what_was_lost():
    """str() of a Gap names the subscription, and the positions between which events were lost."""
    text = str(Gap("repositioned", "Orders", ReplayId(b"\x01"), ReplayId(b"\x02")))
    assert "Orders" in text
    assert "between 01 and 02" in text
    assert "the start" in str(Gap("unanchored", "Orders"))
