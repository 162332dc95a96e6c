"""The JSON form of a payload."""

from __future__ import annotations

import json
import math

import pytest

from sfpubsub.avro.json import to_json


def test_integers_keep_all_their_bits():
    """U18: a 64-bit commitNumber is not rounded."""
    assert json.loads(to_json({"n": 2**63 - 1})) == {"n": 2**63 - 1}


def test_numbers_that_json_has_no_word_for_become_strings():
    """The line stays valid JSON."""
    value = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": b"\x01", "e": 1.5}
    assert json.loads(to_json(value), parse_constant=pytest.fail) == {
        "a": "NaN", "b": ["Infinity", {"c": "-Infinity"}], "d": "AQ==", "e": 1.5,
    }  # fmt: skip


def test_bytes_become_base64():
    """Nothing is lost to an encoding."""
    assert to_json({"b": b"\xff\x00"}) == '{"b":"/wA="}'


def test_text_is_one_readable_line():
    """Line breaks are escaped, letters are not."""
    assert to_json({"t": "Zürich\n"}) == '{"t":"Zürich\\n"}'


def test_what_has_no_form_is_a_mistake():
    """A value that Avro cannot have brought is not guessed at."""
    with pytest.raises(TypeError, match="set"):
        to_json({"x": {1}})
