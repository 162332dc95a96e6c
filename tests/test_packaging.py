"""Tests of the package's public names, and of what importing it or running its command loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sfpubsub


def python(code: str) -> str:
    """Run code in a new interpreter; return its stdout without surrounding whitespace."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


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
