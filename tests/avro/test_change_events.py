"""Tests of change events: bitmaps that become field names, and what happened to each field."""

from __future__ import annotations

import copy
import json
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfpubsub.avro.arrow import record_batches
from sfpubsub.avro.bitmaps import MAX_BITMAPS, ChangeSchema, change_schema
from sfpubsub.avro.change_events import ChangeEvent, FieldChange, FieldState, TextDiff
from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.errors import DecodeError, LocalProtocolError, SchemaError
from sfpubsub.types import RawEvent, ReplayId

from ..conftest import PATIENCE
from ..emulator.support import ACCOUNTS, CHANGES, ORDERS
from .schemas import CORPUS, DATA, changes, schema_text

# Schemas in the service's form, with each named type defined at its first use.

HEADER = {
    "type": "record",
    "name": "ChangeEventHeader",
    "fields": [
        {"name": "entityName", "type": "string"},
        {"name": "recordIds", "type": {"type": "array", "items": "string"}},
        {
            "name": "changeType",
            "type": {"type": "enum", "name": "ChangeType", "symbols": ["CREATE", "UPDATE"]},
        },
    ],
}
PARTS = (
    "Street", "City", "State", "PostalCode", "Country", "StateCode", "CountryCode", "Latitude",
    "Longitude", "GeocodeAccuracy",
)  # fmt: skip


def record(name: str, *fields: str) -> dict:
    """Return a record type whose fields are nullable strings."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": ["null", "string"]} for field in fields],
    }


def schema_json(*fields: tuple[str, object], name: str = "AccountChangeEvent", **more) -> str:
    """Return a schema's text with the given fields, each a name and a type."""
    return json.dumps(
        {
            "type": "record",
            "name": name,
            "namespace": "com.sforce.eventbus",
            "fields": [{"name": field, "type": kind} for field, kind in fields],
            **more,
        }
    )


SCALAR = ["null", "string"]
ACCOUNT = schema_json(
    ("ChangeEventHeader", HEADER),
    (
        "Name",
        ["null", "string", record("Switchable_PersonName", "Title", "FirstName", "Last")],
    ),
    ("Type", SCALAR),
    ("BillingAddress", ["null", record("Address", *PARTS)]),
    ("Phone", SCALAR),
    ("Description", SCALAR),
    ("ShippingAddress", ["null", "Address"]),
    *((f"Field{index}", SCALAR) for index in range(7, 70)),
)
SCHEMA = ChangeSchema("acc", ACCOUNT)


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ([], ()),
        (["0x00"], ()),
        (["0x02"], ("Name",)),
        (["0x800000"], ("Field23",)),
        (["0x100000000000800000"], ("Field23", "Field68")),
        (["0x0100"], ("Field8",)),
        (["0x000000000002"], ("Name",)),
        (["0x1"], ("ChangeEventHeader",)),
        (["0x2c"], ("Type", "BillingAddress", "Description")),
        (["6-0x0180"], ("ShippingAddress.Latitude", "ShippingAddress.Longitude")),
        (["3-0x01"], ("BillingAddress.Street",)),
        (["1-0x02"], ("Name.FirstName",)),
        (["0x800000", "6-0x01"], ("Field23", "ShippingAddress.Street")),
        (
            ["0x14", "3-0x02", "6-0x02", "1-0x06"],
            (
                "Type", "Phone", "BillingAddress.City", "ShippingAddress.City", "Name.FirstName",
                "Name.Last",
            ),
        ),
        (["3-0x03FF"], tuple(f"BillingAddress.{part}" for part in PARTS)),
        (["Phone", "BillingAddress.City"], ("Phone", "BillingAddress.City")),
    ],
)  # fmt: skip
def test_a_bitmap_becomes_names(entries, names):
    """Bitmaps of fields and of components expand to field names, without changing the event's
    own list.
    """
    given_entries = list(entries)
    assert SCHEMA.expand(entries) == names
    assert SCHEMA.expand(entries) == names, "the cached result differs"
    assert entries == given_entries, "the event's own list was changed"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("0x400000000000000000", "has bit 70, but there are only 70 fields"),
        ("0x" + "F" * 1024, "has bit 4095"),
        ("3-0x0400", "has bit 10, but there are only 10 fields"),
        ("2-0x01", "components of Type, which has no components"),
        ("70-0x01", "refers to field 70"),
        ("9999-0x01", "refers to field 9999"),
        ("", "neither"),
        ("0x", "neither"),
        ("3-", "neither"),
        ("-0x01", "neither"),
        ("-1-0x01", "neither"),
        ("3-3-0x01", "neither"),
        ("0X01", "neither"),
        ("0x0G", "neither"),
        ("0x1_0", "neither"),
        (" 0x01", "neither"),
        ("0x01\n", "neither"),
        ("٣-0x01", "neither"),
        ("0x" + "0" * 1025, "neither"),
        ("9" * 5000 + "-0x01", "neither"),
        ("Nonsense", "neither"),
        ("BillingAddress.Nonsense", "neither"),
        ("ChangeEventHeader.entityName", "neither"),
        (7, "not a string"),
        (None, "not a string"),
        (["0x01"], "not a (list of strings|list of texts|string)"),
    ],
)
def test_an_invalid_bitmap_raises_a_decode_error(entry, says):
    """A bit beyond the schema, or garbage, raises a short error that names the entry and the
    schema.
    """
    for entries in ([entry], ["0x02", entry], [entry, "0x02", "0x04"]):
        with pytest.raises(DecodeError, match=says) as caught:
            SCHEMA.expand(entries)
        assert "acc (AccountChangeEvent)" in str(caught.value)
        assert repr(entry)[:40] in str(caught.value)
        assert len(str(caught.value)) < 400


def test_a_string_instead_of_a_list_raises():
    """A string would be read as a list of its characters, none of which is a bitmap."""
    with pytest.raises(DecodeError, match="'0'"):
        SCHEMA.expand("0x02")


@pytest.mark.parametrize(
    "kind",
    [
        ["null", record("Point", "X", "Y")],
        ["null", "string", record("Point", "X", "Y")],
        ["string", record("Point", "X", "Y")],
        [record("Point", "X", "Y"), "null"],
        record("Point", "X", "Y"),
        {"type": record("Point", "X", "Y")},
        ["null", record("other.Point", "X", "Y")],
        ["null", {**record("Point", "X", "Y"), "namespace": "other"}],
        ["null", {**record("Point", "X", "Y"), "fields": [
            {"name": "X", "type": ["null", record("Deep", "Z")]},
            {"name": "Y", "type": ["null", "Point"]},
        ]}],
    ],
)  # fmt: skip
def test_components_are_found_in_unions_and_by_reference(kind):
    """The components of a record are found whether its type stands alone or in a union, and in
    later fields that refer to it only by name.
    """
    reference = "other.Point" if "other" in json.dumps(kind) else "Point"
    text = schema_json(
        ("ChangeEventHeader", HEADER),
        ("First", kind),
        ("Second", ["null", reference]),
        ("Third", ["string", reference]),
        ("Scalar", {"type": "string"}),
    )
    schema = ChangeSchema("id", text)
    for index, field in enumerate(("First", "Second", "Third"), 1):
        assert schema.expand([f"{index}-0x03"]) == (f"{field}.X", f"{field}.Y")
    with pytest.raises(DecodeError, match="components of Scalar"):
        schema.expand(["4-0x01"])


def test_a_type_defined_inside_another_can_be_named_later():
    """A record that is defined inside an array, a map or another record can be referred to by
    later fields.
    """
    text = schema_json(
        ("ChangeEventHeader", HEADER),
        ("List", {"type": "array", "items": ["null", record("A", "X")]}),
        ("Map", {"type": "map", "values": record("B", "Y")}),
        ("Record", {"type": "record", "name": "C", "fields": [
            {"name": "Inner", "type": record("D", "Z")},
        ]}),
        ("UseA", ["null", "A"]),
        ("UseB", ["null", "com.sforce.eventbus.B"]),
        ("UseD", ["null", "D"]),
        ("UseEnum", ["null", "ChangeType"]),
    )  # fmt: skip
    schema = ChangeSchema("id", text)
    assert schema.parts.keys() == {"ChangeEventHeader", "Record", "UseA", "UseB", "UseD"}
    assert schema.expand(["4-0x01", "5-0x01", "6-0x01"]) == ("UseA.X", "UseB.Y", "UseD.Z")


def test_references_work_without_a_namespace():
    """Types of a schema without a namespace refer to each other by their plain names."""
    text = schema_json(
        ("ChangeEventHeader", HEADER),
        ("A", ["null", record("P", "X")]),
        ("B", ["null", "P"]),
        namespace="",
    )
    assert ChangeSchema("id", text).expand(["2-0x01"]) == ("B.X",)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"string"', "{}", '{"name": "x", "type": "record"}', "7", "[" * 100_000]
)
def test_a_broken_schema_raises_a_schema_error(text):
    """Whatever the text of the schema is, the error names the schema's id."""
    with pytest.raises(SchemaError, match="id9"):
        ChangeSchema("id9", text)


# Random schemas, compared with a slow reference that doesn't parse the schema's text.

WRAPS = (["null"], ["null", "int"], ["int"])


@st.composite
def models(draw) -> tuple[str, list[tuple[str, list[str] | None]]]:
    """Draw a random schema.

    Return its text and, for each field, its name and the names of its components (None for a plain
    field).
    """
    defined: list[list[str]] = []
    model: list[tuple[str, list[str] | None]] = [("ChangeEventHeader", ["entityName"])]
    fields: list[tuple[str, object]] = [("ChangeEventHeader", record("H", "entityName"))]
    for index, code in enumerate(draw(st.lists(st.integers(0, 200), max_size=90))):
        kind: object = "string"
        parts = None
        if code >= 140:  # a record: the one defined before, or a new one of up to 20 fields
            if not defined or code >= 170:
                defined.append([f"P{code}_{part}" for part in range(1 + code % 20)])
                kind = record(f"Type{len(defined) - 1}", *defined[-1])
            else:
                kind = f"Type{len(defined) - 1}"
            parts = defined[-1]
        fields.append((f"F{index}", [*WRAPS[code % 3], kind]))
        model.append((f"F{index}", parts))
    return schema_json(*fields), model


def expand_slowly(model: list[tuple[str, list[str] | None]], entry: str) -> list[str]:
    """Return the names that a bitmap *entry* stands for, expanded digit by digit.

    *model* is the list of fields from `models`. Raise IndexError or TypeError if the entry doesn't
    fit it.
    """
    parent, _, digits = entry.rpartition("0x")
    names = [name for name, _ in model]
    if parent:
        field, parts = model[int(parent.removesuffix("-"))]
        names = [f"{field}.{part}" for part in parts]
    found = []
    for place, digit in enumerate(reversed(digits)):
        for bit, weight in enumerate((1, 2, 4, 8)):
            if "0123456789ABCDEF".index(digit) // weight % 2:
                found.append(names[4 * place + bit])
    return found


@given(models(), st.data())
def test_random_bitmaps_expand_as_in_the_slow_reference(model_and_text, data):
    """For random schemas, bitmaps expand to the same names as in the slow reference.

    If the reference raises an error, so does the expansion.
    """
    text, model = model_and_text
    schema = ChangeSchema("id", text)
    entries = []
    for _ in range(data.draw(st.integers(0, 4))):
        parent = data.draw(st.none() | st.integers(0, len(model)))
        width = len(model)
        if parent is not None and parent < len(model):
            width = len(model[parent][1] or "x")
        bits = data.draw(
            st.integers(0, 2 ** (width + data.draw(st.sampled_from([0, 0, 0, 2]))) - 1)
        )
        size = max(1, (bits.bit_length() + 7) // 8)
        entry = f"0x{bits.to_bytes(size, 'big').hex().upper()}"
        entries.append(entry if parent is None else f"{parent}-{entry}")
    try:
        expected = tuple(name for entry in entries for name in expand_slowly(model, entry))
    except (IndexError, TypeError):
        with pytest.raises(DecodeError):
            schema.expand(entries)
    else:
        assert schema.expand(entries) == expected


@given(st.lists(st.text(max_size=20) | st.from_regex(r"\A([0-9]{1,3}-)?0x[0-9A-F]{1,24}\Z")))
def test_random_text_expands_or_raises_a_decode_error(entries):
    """Random strings in a list of bitmaps expand to known names or raise `DecodeError`."""
    try:
        names = SCHEMA.expand(entries)
    except DecodeError:
        return
    header = {"ChangeEventHeader", *SCHEMA.parts["ChangeEventHeader"]}
    assert set(names) <= SCHEMA.names | header


def test_the_cache_of_bitmaps_is_bounded():
    """A repeated entry returns the cached object; many different ones don't exceed the limit.

    Errors are not cached.
    """
    schema = ChangeSchema("acc", ACCOUNT)
    assert schema.expand(["0x06"]) == ("Name", "Type")
    assert schema.expand(["0x06"]) is schema.expand(["0x06"])
    for bits in range(3 * MAX_BITMAPS):
        schema.expand([f"0x{bits:04X}"])
        assert schema.cached <= MAX_BITMAPS
    cached = schema.cached
    for _ in range(3):
        with pytest.raises(DecodeError):
            schema.expand(["0xFFFFFFFFFFFFFFFFFFFF"])
    assert schema.cached == cached, "an error was cached"


def test_a_schema_is_parsed_once_per_id_and_text():
    """The same id and text return the same object.

    Another text under the same id is a different schema.
    """
    assert change_schema("acc", ACCOUNT) is change_schema("acc", ACCOUNT)
    assert repr(change_schema("acc", ACCOUNT)) == "ChangeSchema(acc, AccountChangeEvent)"
    shorter = schema_json(("ChangeEventHeader", HEADER), ("Other", SCALAR))
    assert change_schema("acc", shorter).expand(["0x02"]) == ("Other",)
    assert change_schema("acc", ACCOUNT).expand(["0x02"]) == ("Name",)


def test_threads_share_a_schema():
    """Four threads that overfill the cache of a schema that they share get the right names."""
    alone, schema = ChangeSchema("acc", ACCOUNT), ChangeSchema("acc", ACCOUNT)
    entries = [[f"0x{bits:04X}", "6-0x01"] for bits in range(300 + 2 * MAX_BITMAPS)]
    names = [alone.expand(each) for each in entries]
    wrong: list[object] = []

    def work(start: int) -> None:
        for bits in range(start, start + 2 * MAX_BITMAPS):
            found = schema.expand(entries[bits])
            if found != names[bits]:
                wrong.append((bits, found))

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []
    assert schema.cached <= MAX_BITMAPS + len(threads)


# What happened to a field.

FACTS = {
    "entityName": "Account",
    "recordIds": ["001A", "001B"],
    "changeType": "UPDATE",
    "changeOrigin": "com/salesforce/api/soap/60.0;client=x",
    "transactionKey": "000f2c32",
    "sequenceNumber": 2,
    "commitTimestamp": 1_771_300_995_000,
    "commitNumber": 2**53 + 1,
    "commitUser": "005A",
    "nulledFields": [],
    "diffFields": [],
    "changedFields": [],
}
CHANGED, NULLED = FieldState.CHANGED, FieldState.NULLED
UNCHANGED, UNKNOWN = FieldState.UNCHANGED, FieldState.UNKNOWN
NO_PARTS = dict.fromkeys(PARTS)


def change(
    change_type: str = "UPDATE", values: dict | None = None, **header: object
) -> ChangeEvent:
    """Return a change event of `SCHEMA` with the given type, field values and header entries."""
    value = dict.fromkeys(SCHEMA.fields)
    value["ChangeEventHeader"] = {**FACTS, "changeType": change_type, **header}
    return ChangeEvent(SCHEMA, {**value, **(values or {})})


def test_the_header_is_read():
    """Each header entry is an attribute of the change event.

    Bitmaps are expanded to field names, and lists become tuples.
    """
    event = change(changedFields=["0x14", "6-0x01"], nulledFields=["0x10"], diffFields=["0x20"])
    assert event.change_type == "UPDATE"
    assert event.entity_name == "Account"
    assert event.record_ids == ("001A", "001B")
    assert event.changed_fields == ("Type", "Phone", "ShippingAddress.Street")
    assert event.nulled_fields == ("Phone",)
    assert event.diff_fields == ("Description",)
    assert event.transaction_key == "000f2c32"
    assert event.sequence_number == 2
    assert event.commit_number == 2**53 + 1
    assert event.commit_timestamp == 1_771_300_995_000
    assert event.commit_user == "005A"
    assert event.change_origin == "com/salesforce/api/soap/60.0;client=x"
    assert repr(event) == "ChangeEvent(UPDATE, AccountChangeEvent)"


@pytest.mark.parametrize(
    ("change_type", "is_gap", "is_overflow"),
    [
        ("CREATE", False, False),
        ("GAP_CREATE", True, False),
        ("GAP_UPDATE", True, False),
        ("GAP_DELETE", True, False),
        ("GAP_UNDELETE", True, False),
        ("GAP_OVERFLOW", True, True),
        ("GAP_OF_TOMORROW", True, False),
        ("SNAPSHOT", False, False),
    ],
)
def test_gap_events_are_recognized_by_their_type(change_type, is_gap, is_overflow):
    """Any change type that begins with GAP_ is a gap, even one that this release doesn't know."""
    event = change(change_type)
    assert (event.is_gap, event.is_overflow) == (is_gap, is_overflow)


STREET = {"BillingAddress": {**NO_PARTS, "Street": "One Market"}}


@pytest.mark.parametrize(
    ("event", "name", "state", "value"),
    [
        # CREATE: a field with a value was changed to it.
        (change("CREATE", {"Phone": "1"}), "Phone", CHANGED, "1"),
        (change("CREATE", {"Phone": ""}), "Phone", CHANGED, ""),
        (change("CREATE"), "Phone", UNCHANGED, None),
        (change("CREATE", STREET), "BillingAddress", CHANGED, STREET["BillingAddress"]),
        (change("CREATE", STREET), "BillingAddress.Street", CHANGED, "One Market"),
        (change("CREATE", STREET), "BillingAddress.City", UNCHANGED, None),
        (change("CREATE", STREET), "ShippingAddress.City", UNCHANGED, None),
        (change("CREATE", {"BillingAddress": NO_PARTS}), "BillingAddress", UNCHANGED, NO_PARTS),
        (change("CREATE", {"Name": "Acme"}), "Name", CHANGED, "Acme"),
        (change("CREATE", {"Name": "Acme"}), "Name.FirstName", UNCHANGED, None),
        (change("CREATE", {"Name": {"FirstName": "A"}}), "Name.FirstName", CHANGED, "A"),
        # UPDATE: the lists decide.
        (change(values={"Phone": "1"}, changedFields=["0x10"]), "Phone", CHANGED, "1"),
        (change(changedFields=["0x10"]), "Phone", NULLED, None),
        (change(changedFields=["0x10"], nulledFields=["0x10"]), "Phone", NULLED, None),
        (change(nulledFields=["0x10"]), "Phone", NULLED, None),
        (change(values={"Phone": "1"}, nulledFields=["0x10"]), "Phone", NULLED, None),
        (change(values=STREET, nulledFields=["0x08"]), "BillingAddress.Street", NULLED, None),
        (change(changedFields=["0x10"]), "Type", UNCHANGED, None),
        (change(values={"Type": "enriched"}), "Type", UNCHANGED, "enriched"),
        # UPDATE of parts.
        (change(values=STREET, changedFields=["3-0x01"]), "BillingAddress.Street", CHANGED,
         "One Market"),
        (change(values=STREET, changedFields=["3-0x01"]), "BillingAddress.City", UNCHANGED, None),
        (change(values=STREET, changedFields=["3-0x01"]), "BillingAddress", CHANGED,
         STREET["BillingAddress"]),
        (change(values=STREET, changedFields=["3-0x01"]), "ShippingAddress", UNCHANGED, None),
        (change(values=STREET, changedFields=["3-0x03"], nulledFields=["3-0x02"]),
         "BillingAddress.City", NULLED, None),
        (change(nulledFields=["3-0x02"]), "BillingAddress", CHANGED, None),
        (change(changedFields=["3-0x03FF"], nulledFields=["3-0x03FF"]), "BillingAddress", NULLED,
         None),
        (change(changedFields=["0x40"], nulledFields=["0x40"]), "ShippingAddress.City", NULLED,
         None),
        (change(values={"ShippingAddress": {**NO_PARTS, "City": "Rome"}}, changedFields=["0x40"]),
         "ShippingAddress.City", CHANGED, "Rome"),
        (change(values={"ShippingAddress": {**NO_PARTS, "City": "Rome"}}, changedFields=["0x40"]),
         "ShippingAddress.State", NULLED, None),
        (change(values={"Name": {"FirstName": "A"}}, changedFields=["1-0x02"]), "Name.FirstName",
         CHANGED, "A"),
        (change(values={"Phone": "1"}, changedFields=["Phone"]), "Phone", CHANGED, "1"),
        # DELETE and UNDELETE are about every field.
        (change("DELETE"), "Phone", NULLED, None),
        (change("DELETE"), "BillingAddress.City", NULLED, None),
        (change("UNDELETE", {"Phone": "1"}), "Phone", CHANGED, "1"),
        (change("UNDELETE", {"Phone": "1"}), "Type", NULLED, None),
        (change("UNDELETE", STREET), "BillingAddress.City", NULLED, None),
        # Types that don't say what happened to a field.
        (change("GAP_UPDATE"), "Phone", UNKNOWN, None),
        (change("GAP_DELETE"), "Phone", UNKNOWN, None),
        (change("SNAPSHOT", {"Phone": "1"}), "Phone", UNKNOWN, "1"),
    ],
)  # fmt: skip
def test_the_state_of_a_field_depends_on_the_change_type(event, name, state, value):
    """Each change type has its own rule for whether a field is changed, nulled, unchanged or
    unknown.
    """
    found = event.change(name)
    assert (found.name, found.state, found.value) == (name, state, value)


HASH = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
DIFF = f"--- \n+++ {HASH}\n@@ -1,2 +1,2 @@\n line\n-old\n+new\n"


@pytest.mark.parametrize("text", [DIFF, DIFF.replace("--- ", "---"), DIFF.replace("\n", "\r\n")])
def test_a_diff_of_a_large_text_becomes_a_text_diff(text):
    """A field is read as a `TextDiff` with the hash of the new text if it is in ``diffFields`` and
    its value begins with a diff header.
    """
    for lists in ({"changedFields": ["0x20"], "diffFields": ["0x20"]}, {"diffFields": ["0x20"]}):
        found = change(values={"Description": text}, **lists).change("Description")
        assert found.state is CHANGED
        assert found.value == TextDiff(text, HASH)


@pytest.mark.parametrize(
    ("text", "diff_fields"),
    [(DIFF, []), (DIFF, ["0x10"]), ("--- a line of a text", ["0x20"]), ("+++ x", ["0x20"])],
)
def test_text_that_looks_like_a_diff_stays_text(text, diff_fields):
    """Text is a diff only if it begins with a diff header and its bit is set in ``diffFields``."""
    event = change(values={"Description": text}, changedFields=["0x20"], diffFields=diff_fields)
    assert event.change("Description").value == text


@pytest.mark.parametrize(
    "name", ["Nope", "", "BillingAddress.Nope", "Phone.City", "ChangeEventHeader", "City"]
)
def test_an_unknown_field_name_raises(name):
    """A misspelt field name raises an error instead of looking unchanged, for every change type."""
    for change_type in ("UPDATE", "DELETE", "GAP_UPDATE"):
        with pytest.raises(LocalProtocolError, match="AccountChangeEvent has no field"):
            change(change_type).change(name)


@pytest.mark.parametrize("lists", ["changedFields", "nulledFields", "diffFields"])
def test_a_broken_list_leaves_the_header_readable(lists):
    """An invalid bitmap raises an error when a field's change is requested, but the header's
    other entries can be read.
    """
    event = change(**{lists: ["0xFFFFFFFFFFFFFFFFFFFF"]})
    assert event.record_ids == ("001A", "001B")
    with pytest.raises(DecodeError, match="0xFFFFFFFFFFFFFFFFFFFF"):
        event.change("Phone")


def test_an_incomplete_header_raises_a_decode_error():
    """A missing header, or a missing entry in it, raises `DecodeError` instead of KeyError."""
    with pytest.raises(DecodeError, match="no header"):
        ChangeEvent(SCHEMA, {"ChangeEventHeader": None})
    event = ChangeEvent(SCHEMA, {"ChangeEventHeader": {"changedFields": "0x02"}})
    for fact in ("entity_name", "record_ids", "changed_fields", "sequence_number"):
        with pytest.raises(DecodeError, match=r"AccountChangeEvent \(schema acc\) has no"):
            getattr(event, fact)


def golden_cases() -> list:
    """Return the change events of ``changes.json`` as test parameters."""
    return [pytest.param(case, id=f"{case['schema']}: {case['what']}") for case in changes()]


@pytest.mark.parametrize("case", golden_cases())
def test_the_corpus_has_its_expected_changes(case):
    """Each stored payload is decoded to the event, header and field states that were written
    down by hand.
    """
    codec = Codec("id", schema_text(case["schema"]))
    value = codec.decode(case["payload"])
    assert {name: v for name, v in value.items() if v is not None} == case["event"]
    event = ChangeEvent(change_schema("id", codec.schema_json), value)
    header = case["event"]["ChangeEventHeader"]
    assert (event.entity_name, event.change_type) == (header["entityName"], header["changeType"])
    assert event.record_ids == tuple(header["recordIds"])
    assert (event.is_gap, event.is_overflow) == (case["is_gap"], case["is_overflow"])
    for lists in ("changed_fields", "nulled_fields", "diff_fields"):
        assert list(getattr(event, lists)) == case[lists]
    for name, (state, expected) in case["fields"].items():
        found = event.change(name)
        if isinstance(found.value, TextDiff):
            found = replace(found, value=vars(found.value))
        assert found == FieldChange(name, FieldState(state), expected)


def test_expected_changes_cover_every_change_event_schema():
    """Every change event schema of the corpus has at least one case in ``changes.json``."""
    covered = {case["schema"] for case in changes()}
    assert covered == {name for name in CORPUS if name.endswith(("change", "change_2023"))}


def test_an_unknown_change_type_leaves_fields_unknown():
    """An event whose change type was added to the enum later can be read, and the states of its
    fields are unknown.
    """
    schema = json.loads(schema_text("shipment_change"))
    kinds = schema["fields"][0]["type"]["fields"][2]["type"]["symbols"]
    kinds.append("ARCHIVE")
    codec = Codec("new", json.dumps(schema))
    header = {**FACTS, "changeType": "ARCHIVE"}
    value = codec.decode(codec.encode({"ChangeEventHeader": header, "Weight__c": 1.0}))
    event = ChangeEvent(change_schema("new", codec.schema_json), value)
    assert (event.change_type, event.is_gap, event.is_overflow) == ("ARCHIVE", False, False)
    assert event.change("Weight__c") == FieldChange("Weight__c", UNKNOWN, 1.0)


def test_reading_an_event_does_not_change_its_value():
    """Unlike the helper in Salesforce's examples, reading changes doesn't modify the event's own
    lists.
    """
    value = {
        **STREET,
        "ChangeEventHeader": {**FACTS, "changedFields": ["0x10", "3-0x01"], "diffFields": ["0x20"]},
        "Description": DIFF,
    }
    before = copy.deepcopy(value)
    event = ChangeEvent(SCHEMA, value)
    assert event.changed_fields == ("Phone", "BillingAddress.Street")
    for name in SCHEMA.names:
        event.change(name)
    assert value == before


def event_of(codec: Codec, payload: bytes, **more) -> Event:
    """Return a received event with the given *payload* and the schema of *codec*."""
    (event,) = EventBatch(
        subscription="/data/Any",
        topic="/data/Any",
        events=(RawEvent("", codec.schema_id, payload, ReplayId(b"1")),),
        codecs={codec.schema_id: codec},
        first_seq=0,
        received_at=0.0,
        ack=lambda first, last: None,
        **more,
    )
    return event


def test_changed_fields_need_no_other_entry_of_the_header():
    """``changed_fields`` works even if the header's other lists are invalid, and raises an error if
    its own list is missing.
    """
    codec = Codec("id", schema_text("shipment_change"))
    header = {**FACTS, "changedFields": ["0x04"], "nulledFields": ["?"], "diffFields": ["?"]}
    event = event_of(codec, codec.encode({"ChangeEventHeader": header}))
    assert event.changed_fields == event.change_event.changed_fields == (codec.fields[2],)
    with pytest.raises(DecodeError, match="neither a bitmap"):
        _ = event.change_event.nulled_fields
    codec = Codec("acc", ACCOUNT)  # its header has no lists of fields
    told = {"entityName": "Account", "recordIds": [], "changeType": "UPDATE"}
    value = dict.fromkeys(codec.fields) | {"ChangeEventHeader": told}
    event = event_of(codec, codec.encode(value))
    with pytest.raises(DecodeError, match="has no changedFields"):
        _ = event.changed_fields


# Against the emulator.

ACCESSORS = (
    "change_type", "entity_name", "record_ids", "changed_fields", "nulled_fields", "diff_fields",
    "transaction_key", "sequence_number", "commit_number", "commit_timestamp", "commit_user",
    "change_origin",
)  # fmt: skip


def received(subscription, count: int) -> list[Event]:
    """Return the events of as many batches as it takes to receive at least *count* events."""
    events: list[Event] = []
    while len(events) < count:
        batch = subscription.next_batch(PATIENCE)
        assert isinstance(batch, EventBatch), subscription.health()
        events += batch
    return events


def test_change_events_over_the_wire(run_emulator, connect):
    """Change events that the emulator sends with bitmaps are decoded into field names, states,
    diffs and gaps.
    """
    emulator = run_emulator()
    update = {**FACTS, "changedFields": ["0x010044", "5-0x0180"], "nulledFields": ["0x04"],
              "diffFields": ["0x010000"]}  # fmt: skip
    emulator.publish(
        ACCOUNTS,
        [
            {
                "ChangeEventHeader": update,
                "Phone": "+41",
                "Description": DIFF,
                "ShippingAddress": {"Latitude": 47.4, "Longitude": 8.5},
            },
            {"ChangeEventHeader": {**FACTS, "changeType": "CREATE"}, "Name": {"LastName": "Doe"}},
            {"ChangeEventHeader": {**FACTS, "changedFields": ["1-0x02", "4-0x01"]}},
            {"ChangeEventHeader": {**FACTS, "changeType": "DELETE"}},
            {"ChangeEventHeader": {**FACTS, "changeType": "GAP_OVERFLOW", "recordIds": []}},
            {"ChangeEventHeader": {**FACTS, "changeType": "SNAPSHOT"}, "Phone": "1"},
            {"ChangeEventHeader": {**FACTS, "changedFields": ["0x4000000000000000"]}},
        ],
    )
    with connect(emulator).subscribe(CHANGES, replay="earliest") as subscription:
        events = received(subscription, 7)
    merged, created, nested, deleted, lost, newer, broken = (event.change_event for event in events)
    assert merged.record_ids == ("001A", "001B")
    assert merged.entity_name == "Account"
    assert merged.change_type == "UPDATE"
    assert merged.changed_fields == (
        "Type", "Phone", "Description", "ShippingAddress.Latitude", "ShippingAddress.Longitude",
    )  # fmt: skip
    assert (merged.nulled_fields, merged.diff_fields) == (("Type",), ("Description",))
    assert events[0].value["ChangeEventHeader"]["changedFields"] == update["changedFields"]
    assert [getattr(merged, name) for name in ACCESSORS[6:]] == [
        "000f2c32", 2, 2**53 + 1, 1_771_300_995_000, "005A", FACTS["changeOrigin"],
    ]  # fmt: skip
    assert merged.change("Phone").value == "+41"
    assert merged.change("Type").state is NULLED
    assert merged.change("Fax").state is UNCHANGED
    assert merged.change("ShippingAddress.Latitude").value == 47.4
    assert merged.change("Description").value == TextDiff(DIFF, HASH)
    assert created.change("Name.LastName").value == "Doe"
    assert nested.changed_fields == ("Name.FirstName", "BillingAddress.Street")
    assert deleted.change("Phone").state is NULLED
    assert (lost.is_gap, lost.is_overflow, lost.record_ids) == (True, True, ())
    assert lost.change("Phone").state is UNKNOWN
    assert (newer.change_type, newer.is_gap) == ("SNAPSHOT", False)
    assert broken.record_ids == ("001A", "001B")
    with pytest.raises(DecodeError, match="0x4000000000000000") as caught:
        _ = broken.changed_fields
    assert events[6].schema_id in str(caught.value)
    # The event's own attribute returns the same, and raises the same.
    for event in events[:6]:
        assert event.changed_fields == event.change_event.changed_fields
    with pytest.raises(DecodeError, match="0x4000000000000000"):
        _ = events[6].changed_fields


def test_a_platform_event_has_no_change_event(run_emulator, connect):
    """``change_event`` of a platform event is None, and the payload isn't decoded to find that
    out.
    """
    emulator = run_emulator()
    emulator.publish(ORDERS, [{}])
    with connect(emulator).subscribe(ORDERS, replay="earliest") as subscription:
        (event,) = received(subscription, 1)
    assert event.change_event is None
    assert event.changed_fields == ()
    assert event._value is None


def test_each_event_is_read_with_its_own_schema(run_emulator, connect):
    """A field inserted in the middle shifts the bits, so old and new events are each read with
    their own schema.
    """
    emulator = run_emulator()
    client = connect(emulator)
    row = {"ChangeEventHeader": {**FACTS, "changedFields": ["0x0080"]}}
    emulator.publish(ACCOUNTS, [row])
    wider = json.loads(client.get_schema(client.get_topic(ACCOUNTS).schema_id).schema_json)
    wider["fields"].insert(7, {"name": "New__c", "type": SCALAR, "default": None})
    emulator.change_schema(ACCOUNTS, json.dumps(wider))
    emulator.publish(ACCOUNTS, [row])
    with client.subscribe(ACCOUNTS, replay="earliest") as subscription:
        older, newer = received(subscription, 2)
    assert older.change_event.changed_fields == ("Fax",)
    assert newer.change_event.changed_fields == ("New__c",)


FLEET = "/data/Fleet__chn"
SHIPMENTS, CARRIERS = "/data/Shipment__ChangeEvent", "/data/Carrier__ChangeEvent"


def test_a_channel_of_two_entities_from_a_seed(run_emulator, connect, tmp_path):
    """On a channel with events of two objects, the same bitmap is expanded with each event's own
    schema.

    GetTopic returns no schema id for the channel.
    """
    seed = tmp_path / "fleet.toml"
    lines = []
    for topic, name in ((SHIPMENTS, "shipment_change"), (CARRIERS, "carrier_change")):
        file = DATA / "schemas" / f"{name}.avsc"
        lines += ["[[topics]]", f'name = "{topic}"', f"schema_file = '{file}'"]
    lines += ["[[channels]]", f'name = "{FLEET}"', f'topics = ["{SHIPMENTS}", "{CARRIERS}"]']
    for topic, entity in ((SHIPMENTS, "Shipment__c"), (CARRIERS, "Carrier__c")):
        header = {**FACTS, "entityName": entity, "changedFields": ["0x0480"]}
        text = json.dumps({"ChangeEventHeader": header})
        lines += ["[[events]]", f'topic = "{topic}"', f"payload_json = '{text}'"]
    seed.write_text("\n".join(lines))
    client = connect(run_emulator(seed=seed))
    assert client.get_topic(FLEET).schema_id == ""
    with client.subscribe(FLEET, replay="earliest") as subscription:
        batch = subscription.next_batch(PATIENCE)
        shipment, carrier = batch
    assert shipment.schema_id != carrier.schema_id
    assert tuple(event.change_event.entity_name for event in batch) == ("Shipment__c", "Carrier__c")
    assert shipment.event_name == "Shipment__ChangeEvent"
    assert shipment.change_event.changed_fields == ("Origin__c", "Weight__c")
    assert carrier.change_event.changed_fields == ("Fleet_Size__c", "Cutoff__c")
    assert {event.topic for event in batch} == {FLEET}
    tables = {rows.column("event_name")[0].as_py(): rows for rows in record_batches(batch)}
    assert set(tables) == {"Shipment__ChangeEvent", "Carrier__ChangeEvent"}
