"""Tests of encoding: valid values are encoded as by fastavro, and errors name the path of an
invalid value.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from sfpubsub.avro.codec import Codec
from sfpubsub.errors import EncodeError

from .schemas import CORPUS, ORDER, payload, schema_text, values

ORDERS = Codec("id1", ORDER)
VALUE = {"CreatedDate": 1, "CreatedById": "005x", "City__c": None, "Amount__c": 1.5}
CONTACTS = Codec("id2", schema_text("contact_change"))
ACCOUNTS = Codec("id3", schema_text("account_change"))
HEADER = next(values("contact_change", 1))["ChangeEventHeader"]

ALL = Codec(
    "id4",
    json.dumps(
        {
            "type": "record",
            "name": "All",
            "fields": [
                {"name": "b", "type": "boolean", "default": False},
                {"name": "i", "type": "int", "default": 0},
                {"name": "f", "type": "float", "default": 0.0},
                {"name": "d", "type": "double", "default": 0.0},
                {"name": "y", "type": "bytes", "default": ""},
                {
                    "name": "e",
                    "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]},
                    "default": "RED",
                },
                {
                    "name": "x",
                    "type": {"type": "fixed", "name": "Two", "size": 2},
                    "default": "ab",
                },
                {"name": "a", "type": {"type": "array", "items": "int"}, "default": []},
                {"name": "m", "type": {"type": "map", "values": ["null", "int"]}, "default": {}},
                {"name": "e2", "type": ["null", "Color"], "default": None},
                {
                    "name": "t",
                    "type": {"type": "long", "logicalType": "timestamp-millis"},
                    "default": 0,
                },
            ],
        }
    ),
)


@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus_is_encoded_as_by_fastavro(name):
    """Each value of the corpus is encoded to the bytes that fastavro produces, and decoded back to
    the same value.
    """
    codec = Codec("id", schema_text(name))
    for value in values(name, 40):
        encoded = codec.encode(value)
        assert encoded == payload(name, value)
        assert codec.decode(encoded) == value


@pytest.mark.parametrize(
    ("codec", "value", "says"),
    [
        (
            ORDERS,
            {"CreatedDate": 1},
            "Order_Event__e needs the field 'CreatedById', of type string",
        ),
        (
            ORDERS,
            {},
            "Order_Event__e needs the fields 'CreatedDate', of type long; 'CreatedById', of type "
            "string",
        ),
        (
            ORDERS,
            {**VALUE, "Nope__c": 1},
            "Order_Event__e has no field 'Nope__c'; Order_Event__e has CreatedDate, CreatedById, "
            "City__c, Amount__c",
        ),
        (
            ORDERS,
            {**VALUE, "Amount__c": "many"},
            "Order_Event__e.Amount__c must be null or double, not str 'many'",
        ),
        (
            ORDERS,
            {**VALUE, "CreatedDate": "now"},
            "Order_Event__e.CreatedDate must be long, not str",
        ),
        (ORDERS, {**VALUE, "CreatedDate": 1.0}, "CreatedDate must be long, not float 1.0"),
        (ORDERS, {**VALUE, "CreatedDate": True}, "CreatedDate must be long, not bool True"),
        (ORDERS, {**VALUE, "CreatedDate": 2**63}, "CreatedDate must be long, not int 9223372036"),
        (ORDERS, {**VALUE, "CreatedById": None}, "CreatedById must be string, not NoneType None"),
        (ORDERS, {**VALUE, "City__c": b"x"}, "City__c must be null or string, not bytes"),
        (ORDERS, {**VALUE, "City__c": "\ud800"}, "City__c must be null or string, not str"),
        (ORDERS, {**VALUE, "Amount__c": 10**400}, "Amount__c must be null or double, not int 1000"),
        (ORDERS, [1], "Order_Event__e must be a mapping, not list"),
        (
            CONTACTS,
            {"ChangeEventHeader": HEADER, "Name": {"LastName": 5}},
            "ContactChangeEvent.Name.LastName must be null or string, not int 5",
        ),
        (
            CONTACTS,
            {"ChangeEventHeader": HEADER, "MailingAddress": {"City": "x", "Town": "y"}},
            "ContactChangeEvent.MailingAddress has no field 'Town'; Address has Street",
        ),
        (
            CONTACTS,
            {"ChangeEventHeader": {**HEADER, "changeType": "RENAME"}},
            "ContactChangeEvent.ChangeEventHeader.changeType must be ChangeType (CREATE, UPDATE",
        ),
        (
            CONTACTS,
            {"ChangeEventHeader": {**HEADER, "recordIds": ["a", 1]}},
            "ContactChangeEvent.ChangeEventHeader.recordIds[1] must be string, not int 1",
        ),
        (
            ACCOUNTS,
            {"ChangeEventHeader": HEADER, "Name": 7},
            "AccountChangeEvent.Name must be null or string or Switchable_PersonName, not int 7",
        ),
        (
            ACCOUNTS,
            {"ChangeEventHeader": HEADER, "Name": {"LastName": 1}},
            "AccountChangeEvent.Name.LastName must be null or string, not int 1",
        ),
        (
            ACCOUNTS,
            {"ChangeEventHeader": HEADER, "ShippingAddress": "here"},
            "AccountChangeEvent.ShippingAddress must be null or Address, not str 'here'",
        ),
        (ALL, {"b": 1}, "All.b must be boolean, not int 1"),
        (ALL, {"i": 2**31}, "All.i must be int, not int 2147483648"),
        (ALL, {"f": 1e39}, "All.f must be float, not float 1e+39"),
        (ALL, {"y": "text"}, "All.y must be bytes, not str 'text'"),
        (ALL, {"x": b"abc"}, "All.x must be Two (2 bytes), not bytes b'abc'"),
        (ALL, {"a": "12"}, "All.a must be array, not str '12'"),
        (ALL, {"m": [1]}, "All.m must be map, not list [1]"),
        (ALL, {"m": {1: 1}}, "All.m must have keys of type str, not int"),
        (ALL, {"m": {"k": "v"}}, "All.m['k'] must be null or int, not str 'v'"),
        (ALL, {"e2": "GREEN"}, "All.e2 must be null or Color (RED, BLUE), not str 'GREEN'"),
        (ALL, {"t": "soon"}, "not a valid All: "),
        (ALL, {"y": "z" * 999}, "..."),
    ],
)
def test_an_invalid_value_is_named_with_its_path(codec, value, says):
    """The error contains the path of the value, the expected type and the actual type, and stays
    short.
    """
    with pytest.raises(EncodeError) as caught:
        codec.encode(value)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 500


def test_defaults_are_applied():
    """Missing fields take the schema's default, even in nested records."""
    decoded = ALL.decode(ALL.encode({}))
    assert decoded["e"] == "RED"
    assert decoded["x"] == b"ab"
    assert decoded["m"] == {}
    named = CONTACTS.decode(
        CONTACTS.encode({"ChangeEventHeader": HEADER, "Name": {"LastName": "X"}})
    )
    assert named["Name"] == {
        "Salutation": None, "FirstName": None, "LastName": "X", "MiddleName": None,
        "InformalName": None, "Suffix": None,
    }  # fmt: skip


def test_integers_are_accepted_as_doubles():
    """A double field accepts an integer, and a float field accepts infinity."""
    assert ORDERS.decode(ORDERS.encode({**VALUE, "Amount__c": 2}))["Amount__c"] == 2.0
    assert ALL.decode(ALL.encode({"f": float("inf"), "i": -(2**31)}))["f"] == float("inf")


def test_created_fields_are_filled_in_only_on_request():
    """CreatedDate and CreatedById are filled in if requested and missing.

    A given value is kept, and a schema without these fields is accepted.
    """
    short = {"City__c": "Bern"}
    with pytest.raises(EncodeError, match="CreatedDate"):
        ORDERS.encode(short)
    filled = ORDERS.decode(ORDERS.encode(short, fill_created=(5, "005y")))
    assert (filled["CreatedDate"], filled["CreatedById"]) == (5, "005y")
    assert short == {"City__c": "Bern"}
    kept = ORDERS.decode(ORDERS.encode({**short, "CreatedDate": 9}, fill_created=(5, "005y")))
    assert (kept["CreatedDate"], kept["CreatedById"]) == (9, "005y")
    ALL.encode({}, fill_created=(5, "005y"))


@pytest.mark.parametrize("name", CORPUS)
def test_what_decoding_gives_can_be_published(name):
    """Values with `datetime` objects, as decoded with ``datetimes=True``, have the same bytes."""
    codec = Codec("id", schema_text(name))
    for value in values(name, 20):
        encoded = payload(name, value)
        assert codec.encode(codec.decode(encoded, datetimes=True)) == encoded


def test_times_and_decimals_are_encoded():
    """A `datetime` of any time zone and a `Decimal` are accepted where the schema has a time and a
    number; the caller's value is not changed.
    """
    value = {
        **VALUE,
        "CreatedDate": datetime(2026, 1, 2, 3, 4, 5, 678_900, timezone(timedelta(hours=1))),
        "Amount__c": Decimal("12.50"),
    }
    found = ORDERS.decode(ORDERS.encode(value))
    at = datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert found["CreatedDate"] == round(at.timestamp()) * 1000 + 678
    assert found["Amount__c"] == 12.5
    assert isinstance(value["Amount__c"], Decimal)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("CreatedDate", datetime(2026, 1, 2), r"CreatedDate is 2026-01-02.* without a time zone"),
        ("CreatedDate", Decimal(1), "CreatedDate must be long, not Decimal"),
        ("City__c", Decimal(1), "City__c must be null or string, not Decimal"),
        ("City__c", datetime(2026, 1, 2, tzinfo=UTC), "City__c must be null or string"),
        ("Amount__c", Decimal("1e400"), r"Amount__c is 1E\+400, which is too large for a double"),
        ("Amount__c", Decimal("sNaN"), "Amount__c is sNaN"),
    ],
)
def test_a_time_or_decimal_that_cannot_be_encoded_names_its_field(field, value, says):
    """A time without a time zone, a number that is too large, and either of them where the schema
    has another type are errors.
    """
    with pytest.raises(EncodeError, match=says):
        ORDERS.encode({**VALUE, field: value})
