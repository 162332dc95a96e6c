"""Tests of a payload's JSON form, which is the same with orjson and with the standard library."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub.avro import json as module
from sfpubsub.avro.codec import Codec
from sfpubsub.avro.json import to_json

from .schemas import CORPUS, golden, schema_text


@pytest.fixture(params=["orjson", "json"])
def json_library(request, monkeypatch):
    """Run the test with each supported JSON library."""
    if request.param == "json":
        monkeypatch.setattr(module, "_orjson", None)
    elif module._orjson is None:
        pytest.skip("orjson is not installed")
    return request.param


def test_integers_keep_full_precision(json_library):
    """Integers of 64 bits or more, such as a commitNumber, are not rounded."""
    for number in (2**63 - 1, -(2**63), 2**64, -(2**90)):
        assert json.loads(to_json({"n": number})) == {"n": number}


def test_nan_and_infinities_become_strings(json_library):
    """The text stays valid JSON, and NaN can be told apart from null; bytes become base64."""
    value = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": b"\x01", "e": 1.5, "f": None}
    assert json.loads(to_json(value), parse_constant=pytest.fail) == {
        "a": "NaN", "b": ["Infinity", {"c": "-Infinity"}], "d": "AQ==", "e": 1.5, "f": None,
    }  # fmt: skip
    assert to_json(math.nan) == '"NaN"'


def test_a_nan_in_a_subclass_of_dict_becomes_a_string(json_library):
    """NaN becomes a string even if a user has replaced a dict with an instance of a subclass."""

    class Mine(dict):
        pass

    assert to_json({"a": Mine(b=math.nan)}) == '{"a":{"b":"NaN"}}'


def test_bytes_become_base64(json_library):
    """Bytes that are not valid text are encoded without loss."""
    assert to_json({"b": b"\xff\x00"}) == '{"b":"/wA="}'


def test_text_is_one_readable_line(json_library):
    """Line breaks are escaped, but letters outside ASCII are not."""
    assert to_json({"t": "Zürich\n"}) == '{"t":"Zürich\\n"}'


def test_a_lone_surrogate_is_escaped(json_library):
    """The text can be encoded in UTF-8 even if a user's value contains a lone surrogate."""
    text = to_json({"t": "ü\ud800"})
    text.encode()
    assert json.loads(text) == {"t": "ü\ud800"}


def test_keys_that_are_not_strings_are_converted(json_library):
    """A key that is a number, None, a boolean or bytes becomes the text of its JSON form."""
    value = {1: 1, None: 2, False: 3, 1.5: 4, b"\x01": 5, math.inf: 6}
    assert json.loads(to_json({"m": value})) == {
        "m": {"1": 1, "null": 2, "false": 3, "1.5": 4, "AQ==": 5, "Infinity": 6}
    }


def test_datetimes_decimals_and_uuids_become_strings(json_library):
    """Datetimes, and the values to which fastavro decodes logical types, become strings."""
    moment = datetime.datetime(2026, 2, 17, 4, 3, 15, 1000, tzinfo=datetime.UTC)
    value = {
        "a": moment,
        "b": moment.date(),
        "c": decimal.Decimal("1.10"),
        "d": uuid.UUID(int=1),
    }
    assert json.loads(to_json(value)) == {
        "a": "2026-02-17T04:03:15.001000+00:00",
        "b": "2026-02-17",
        "c": "1.10",
        "d": "00000000-0000-0000-0000-000000000001",
    }


@pytest.mark.parametrize("value", [{"x": {1}}, {"x": object()}, {("a",): 1}])
def test_a_value_without_a_json_form_raises(value, json_library):
    """A value that cannot come from Avro raises a TypeError instead of being converted."""
    with pytest.raises(TypeError, match=r"set|object|tuple"):
        to_json(value)


@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus_has_its_expected_json(name, json_library):
    """The JSON of each stored payload equals the stored JSON of the value that fastavro decoded."""
    codec = Codec("id", schema_text(name))
    for payload, text in golden(name):
        assert json.loads(to_json(codec.decode(payload))) == json.loads(text)


def test_orjson_is_not_needed(monkeypatch):
    """The package orjson is optional: the module can be imported and used without it."""
    import importlib

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "orjson", None)
        try:
            importlib.reload(module)
            assert module._orjson is None
            assert module.to_json({"a": 1.0}) == '{"a":1.0}'
        finally:
            patch.undo()
            importlib.reload(module)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary()
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_both_libraries_make_equivalent_json(value):
    """Installing orjson changes nothing in the text except the spelling of some floats."""
    if module._orjson is None:
        pytest.skip("orjson is not installed")
    with_orjson = to_json(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_orjson", None)
        without = to_json(value)
    assert json.loads(with_orjson, parse_constant=pytest.fail) == json.loads(without)
    assert one_spelling(with_orjson) == one_spelling(without)
    assert "\n" not in with_orjson + without


def one_spelling(text: str) -> str:
    """Return *text* with each float in Python's spelling, so that 1e+16 and 1e16 are equal."""
    return re.sub(r"-?\d+(\.\d+(e[+-]?\d+)?|e[+-]?\d+)", lambda m: repr(float(m[0])), text)
