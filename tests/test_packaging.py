"""Tests of the package's public names, and of what importing it or running its command loads."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

import sfpubsub

from .pages import ROOT, page


def python(code: str) -> str:
    """Run code in a new interpreter; return its stdout without surrounding whitespace."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_every_extra_is_for_users():
    """The extras are those of the install page.

    What development needs is in dependency groups, which are not published.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (
        page("install").read_text(encoding="utf-8").partition("| extra |")[2].partition("\n\n")[0]
    )
    assert set(project["optional-dependencies"]) == set(re.findall(r"^\| `(\w+)` ", table, re.M))


@pytest.mark.parametrize("name", sfpubsub.__all__)
def test_every_public_name_resolves(name: str):
    """Every name in `__all__` can be imported, and is listed by dir()."""
    assert getattr(sfpubsub, name) is not None
    assert name in dir(sfpubsub)


def test_an_unknown_name_is_an_attribute_error():
    """A misspelt name raises AttributeError, even though names are imported lazily."""
    with pytest.raises(AttributeError, match="PubSubClinet"):
        _ = sfpubsub.PubSubClinet


def test_importing_the_package_loads_nothing_heavy():
    """`import sfpubsub` loads none of the libraries that only some users need."""
    heavy = "{'grpc', 'google.protobuf', 'requests', 'fastavro', 'pyspark', 'pyarrow', 'click'}"
    assert python(f"import sys, sfpubsub; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_help_loads_neither_grpc_nor_spark():
    """`sfpubsub --help` starts quickly, as it loads none of grpc, fastavro, pyspark and pyarrow."""
    code = (
        "import sys; from sfpubsub.cli.main import run; run(['--help']);"
        "print(sorted({'grpc', 'fastavro', 'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    assert python(code).endswith("[]")


def test_the_ingest_help_does_not_load_spark():
    """`sfpubsub ingest --help` loads neither pyspark nor pyarrow."""
    code = (
        "import sys; from sfpubsub.cli.main import run; run(['ingest', '--help']);"
        "print(sorted({'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    assert python(code).endswith("[]")
