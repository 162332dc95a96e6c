"""What a user gets: the public names, a light import, a package that needs no extra to start."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sfpubsub


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


@pytest.mark.parametrize("name", sfpubsub.__all__)
def test_every_public_name_resolves(name: str):
    """What __all__ promises can be imported."""
    assert getattr(sfpubsub, name) is not None
    assert name in dir(sfpubsub)


def test_an_unknown_name_is_an_attribute_error():
    """Lazy names do not hide a typing mistake."""
    with pytest.raises(AttributeError, match="PubSubClinet"):
        _ = sfpubsub.PubSubClinet


def test_importing_the_package_loads_nothing_heavy():
    """import sfpubsub loads none of the libraries that only some users need."""
    heavy = "{'grpc', 'google.protobuf', 'requests', 'fastavro', 'pyspark', 'pyarrow', 'click'}"
    assert python(f"import sys, sfpubsub; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_the_help_page_needs_neither_grpc_nor_spark():
    """sfpubsub --help and a command's usage error start at once."""
    code = (
        "import sys; from sfpubsub.cli.main import run; run(['--help']);"
        "print(sorted({'grpc', 'fastavro', 'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    assert python(code).endswith("[]")


def test_the_ingest_help_does_not_load_spark():
    """sfpubsub ingest --help does not wait for pyspark."""
    code = (
        "import sys; from sfpubsub.cli.main import run; run(['ingest', '--help']);"
        "print(sorted({'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    assert python(code).endswith("[]")
