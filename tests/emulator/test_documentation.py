"""Tests that the emulator's pages in docs/reference match the code, and that their examples run."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from sfpubsub.emulator.faults.refusals import FAILURES
from sfpubsub.emulator.faults.signin_errors import SIGN_IN_ERRORS
from sfpubsub.emulator.http.routing import _ROUTES
from sfpubsub.emulator.org import seed as seeds
from sfpubsub.emulator.org.accounts import DEFAULT_APP, DEFAULT_USER
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer

from ..pages import blocks, page
from .judges import judges, name_of
from .web import token

PAGE = page("emulator").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "code", [code for code in blocks(page("emulator"), "python") if "EmulatorServer" in code]
)
def test_examples_run(code, tmp_path, monkeypatch):
    """Each Python block of the page that uses `EmulatorServer` runs unchanged.

    For other blocks, see tests/test_docs.py.
    """
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_seed_starts(tmp_path):
    """An emulator starts with the seed on the page, and the seed's app can sign in."""
    text, *_ = blocks(page("emulator"), "toml")
    seed = tmp_path / "seed.toml"
    seed.write_text(text, encoding="utf-8")
    assert seeds.load(seed).apps
    with EmulatorServer(tmp_path / "data", seed=seed) as emulator:
        mine = {"client_id": "my-app", "client_secret": "my-secret"}
        assert token(emulator, **mine).status == 200


def test_the_settings_of_the_recipes_are_valid():
    """The settings in the recipes for other clients are valid settings of the emulator."""
    (text,) = blocks(page("emulator-clients"), "toml")
    assert Settings.from_mapping(tomllib.loads(text)["settings"]).headers_at_once


def test_the_recipe_for_rust_is_part_of_the_tested_program():
    """The Rust code on the page is part of a program that test_foreign_clients builds and runs."""
    (shown,) = blocks(page("emulator-clients"), "rust")
    program = Path(__file__).with_name("foreign") / "rust" / "main.rs"
    assert shown.rstrip("\n") in program.read_text(encoding="utf-8")


def test_default_credentials_are_documented():
    """Each default credential has its own row in a table of the page."""
    for value in (*DEFAULT_USER.values(), *DEFAULT_APP.values()):
        assert f"| `{value}` |" in PAGE


def test_settings_and_errors_exist():
    """Every setting in the table exists, and the page lists every error code of sign-in."""
    rows = re.search(r"## Settings\n(.*?)\n## ", PAGE, re.DOTALL)[1]
    named = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", rows, re.MULTILINE)))
    assert set(named) <= {item.name for item in fields(Settings)}
    assert "token_lifetime_s" in named
    for key in ("grant", "client_id", "secret", "password", "refresh", "inactive", "run_as"):
        error, text = SIGN_IN_ERRORS[key]
        assert f"`{error}`" in PAGE
        assert error != "invalid_grant" or f'"{text}"' in PAGE


def test_admin_requests_are_documented():
    """The emulator's page lists every path of the admin endpoint with its methods."""
    for route in _ROUTES:
        if route.path.pattern.startswith("/admin/"):
            for method in route.methods:
                assert f"`{method} {route.path.pattern}`" in PAGE


RECORDS = page("emulator-records").read_text(encoding="utf-8")
EVIDENCE = page("emulator-evidence").read_text(encoding="utf-8")


def test_the_example_and_the_object_of_the_records_page_work(tmp_path, monkeypatch):
    """The Python example on the records page runs, and the object in its seed is valid."""
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(page("emulator-records"), "python")
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    (text,) = blocks(page("emulator-records"), "toml")
    seed = tmp_path / "seed.toml"
    seed.write_text(text, encoding="utf-8")
    (ticket,) = seeds.load(seed).objects
    assert ticket.field("SiteCity") is not None


def test_evidence_names_tests_that_exist():
    """Each test that the page names as evidence, in the form `file::name`, exists."""
    here = Path(__file__).parent
    texts = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (*here.glob("test_*.py"), *(here / "records").glob("test_*.py"))
    }
    named = set(re.findall(r"`(\w+)::(\w+)`", EVIDENCE))
    assert len(named) > 150
    missing = {
        name for name in named if f"\ndef test_{name[1]}(" not in texts.get(f"test_{name[0]}", "")
    }
    assert missing == set()


def test_the_table_of_judges_is_what_runs():
    """The table of programs of others has every test that scripts/judges.sh runs, and the versions
    that these tests fetch.
    """
    root = Path(__file__).parents[2]
    script = (root / "scripts" / "judges.sh").read_text(encoding="utf-8")
    files = re.findall(r"tests/[\w/]+\.py", script)
    run = {
        name_of(f"{file}::{name}")
        for file in files
        for name in re.findall(r"^def (test_\w+)", (root / file).read_text("utf-8"), re.MULTILINE)
    }
    assert {name for judge in judges() for name in judge.tests} == run
    pins = [
        *(root / file for file in files),
        *(root / "tests/streaming/foreign").iterdir(),
        *(path for path in (root / "tests/emulator/foreign").rglob("*") if path.is_file()),
        root / "tests/emulator/python_clients.txt",
        root / "scripts/npm_client.sh",
    ]
    pinned = "".join(path.read_text(encoding="utf-8") for path in pins)
    for judge in judges():
        named = re.sub(r"CometD's Java client \S+|`@salesforce/core` \S+", "", str(judge))
        versions = re.findall(r"\b\d+\.\d+\.\d+\b", named)
        missing = [version for version in versions if version not in pinned]
        assert missing == [], judge.program


MARKS = ("DOC", "PROTO", "SAMPLE", "CLIENT", "SEEN", "2ND", "UNCONF")


def test_evidence_has_sources_and_dates():
    """Each behaviour on the page names a source or is marked UNCONF.

    If a table has a column for tests, each row must name one. Each section states when it was
    looked up.
    """
    for section in EVIDENCE.split("\n## ")[1:]:
        head, _, text = section.partition("\n")
        assert re.search(r"^Looked up on 20\d\d-\d\d-\d\d", text, re.MULTILINE), head
        rows = [line.split(" | ") for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE)]
        known = rows[0].index("known from")
        for row in rows[2:]:
            marked = any(mark in row[known] for mark in MARKS)
            assert marked or len(row[known]) > 20, row  # a source in words, if no mark fits
            assert "test" not in rows[0] or "`" in row[rows[0].index("test")], row


def test_evidence_has_every_status():
    """The page lists exactly the error codes that the code defines, each with its status.

    Statuses that were never observed are marked UNCONF.
    """
    told = dict(re.findall(r"^\| `([a-z.]+)` \| ([A-Z_]+ \| .*) \|$", EVIDENCE, re.MULTILINE))
    assert told.keys() == FAILURES.keys()
    for code, failure in FAILURES.items():
        status, _, source = told[code].partition(" | ")
        assert status == failure.status
        assert failure.confirmed != ("status UNCONF" in source), code
