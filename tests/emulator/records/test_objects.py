"""Tests of object definitions in a seed, of formulas, and of the result files of bulk jobs."""

from __future__ import annotations

import pytest

from sfpubsub.emulator.org import seed as seeds
from sfpubsub.emulator.org.problems import EmulatorProblem, SeedError
from sfpubsub.emulator.org.records import formulas
from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.records.result_file import ResultFile
from sfpubsub.emulator.server import EmulatorServer

OBJECT = "[[objects]]\nname = '{name}'\nkey_prefix = '{prefix}'\nfields = [{fields}]\n"

TOPIC = """[[topics]]
name = '/data/A__ChangeEvent'
schema = '{"type": "record", "name": "A__ChangeEvent", "fields": []}'
"""


def seed_of(path, *, name="A__c", prefix="a0A", fields="", rest=""):
    """Write a seed with one object to *path*, and return *path*."""
    path.write_text(OBJECT.format(name=name, prefix=prefix, fields=fields) + rest, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "A c"}, "'A c' is not a valid object name"),
        ({"prefix": "a0"}, "key_prefix must be three letters or digits"),
        ({"fields": "{name = 'X__c'}"}, "type must be one of"),
        ({"fields": "{name = 'X__c', type = 'colour'}"}, "type must be one of"),
        ({"fields": "{name = '1', type = 'string'}"}, "'1' is not a valid field name"),
        ({"fields": "{name = 'X__c', type = 'string', size = 3}"}, "unknown key size"),
        ({"fields": "{name = 'X__c', type = 'string', length = 1000000}"}, "from 0 to 131072"),
        ({"fields": "{name = 'X__c', type = 'reference'}"}, "needs the key references"),
        ({"fields": "{name = 'X__c', type = 'double', formula = 'Y__c + 1'}"}, "cannot use Y__c"),
        ({"fields": "{name = 'X__c', type = 'double', formula = '1 +'}"}, "not a valid expression"),
        (
            {"fields": "{name = 'X__c', type = 'string'}, {name = 'x__C', type = 'int'}"},
            "the field x__c appears twice",
        ),
        ({"rest": OBJECT.format(name="B__c", prefix="a0A", fields="")}, "key prefix: a0A"),
        ({"rest": TOPIC}, "duplicate topic: /data/A__ChangeEvent"),
    ],
)
def test_a_seed_with_an_invalid_object_is_rejected(tmp_path, given, said):
    """A seed with an invalid object is rejected with a message that says what is wrong."""
    with pytest.raises(SeedError, match=said):
        seeds.load(seed_of(tmp_path / "seed.toml", **given))


def test_a_restart_applies_the_changed_seed(tmp_path):
    """If the emulator restarts with a changed seed, new fields are added, and the records are kept.

    The seed's channel delivers the events of both runs.
    """
    rest = "[[channels]]\nname = '/data/ChangeEvents'\ntopics = ['/data/A__ChangeEvent']\n"
    seed = seed_of(tmp_path / "seed.toml", fields="{name = 'Name', type = 'string'}", rest=rest)
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        user = emulator.accounts.holder("")
        emulator.records.create("A__c", {"Name": "1"}, user)
    fields = "{name = 'Name', type = 'string'}, {name = 'X__c', type = 'int'}"
    seed_of(seed, fields=fields, rest=rest)
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        emulator.records.create("A__c", {"Name": "2", "X__c": 7}, user)
        rows = emulator.records.query("SELECT Name, X__c FROM A__c", user).rows
        assert rows == [{"Name": "1", "X__c": None}, {"Name": "2", "X__c": 7}]
        assert len(emulator.bus.read(emulator.bus.topic("/data/ChangeEvents"), 0, 10)[0]) == 2


def test_a_seed_that_changes_a_field_type_is_rejected(tmp_path):
    """A seed that changes a stored field's type is rejected. The message names the field."""
    seed = seed_of(tmp_path / "seed.toml", fields="{name = 'X__c', type = 'string'}")
    EmulatorServer(tmp_path / "data", seed=seed).stop()
    seed_of(seed, fields="{name = 'X__c', type = 'int'}")
    with pytest.raises(EmulatorProblem, match=r"A__c.X__c: string cannot become int"):
        EmulatorServer(tmp_path / "data", seed=seed)


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("A * B", 6.0),
        ("(a + B) / 2 - 1", 1.5),
        ("-A", -2.0),
        ("Name & ' of ' & A", "x of 2"),
        ("A / (B - 3)", None),
        ("A * Empty", None),
        ("Name & Empty", "x"),
        ("Name * Name", None),
    ],
)
def test_formulas_are_computed(formula, value):
    """Formulas compute numbers and concatenate text; one that cannot be computed yields null."""
    row = {"A": 2.0, "B": 3.0, "Name": "x", "Empty": None}
    assert formulas.compute(formula, row) == value


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os')",
        "A.b",
        "A[0]",
        "A ** 9",
        "lambda: 1",
        "[1]",
        "A if B else 1",
        "1+" * 60 + "1",
    ],
)
def test_unsafe_formulas_are_rejected(formula):
    """A formula with calls, attributes, powers, or other Python syntax is rejected.

    So is one that is nested too deeply.
    """
    with pytest.raises(ValueError, match="formula"):
        formulas.fields_of(formula)


def test_a_custom_objects_event_is_named_after_it():
    """The event of Order__c is Order__ChangeEvent, and that of Account is AccountChangeEvent."""
    for name, event in (("Order__c", "Order__ChangeEvent"), ("Account", "AccountChangeEvent")):
        assert SObject({"name": name, "key_prefix": "001", "fields": []}).event_name == event


def test_result_file_returns_any_range_of_rows(tmp_path):
    """Any range of rows is returned unchanged, including quotes and line breaks, even after the
    file has been truncated and extended.
    """
    file = ResultFile(tmp_path / "rows.csv", ["A", "B"])
    rows = [[str(n), 'x "y"\n' * (n % 3)] for n in range(1000)]
    list(file.append(iter(rows)))
    file.cut(500)
    list(file.append(iter(rows[500:])))
    assert file.count == 1000
    for start, count in ((0, 1), (499, 3), (990, 100), (1000, 5)):
        length, pieces = file.read(start, count)
        data = b"".join(pieces)
        assert len(data) == length
        assert data == file.header + b"".join(map(file.line, rows[start : start + count]))
    file.remove()
    assert list(tmp_path.iterdir()) == []
