"""Paths of this machine, as users write them and as Spark takes them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sfpubsub.errors import ConfigurationError

# Spark's destinations: ``s3a://…``, ``hdfs://…``, and also ``dbfs:/…``.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

# Schemes of stores that have objects and no directories. An object appears when it was written, as
# a whole; a rename is a copy.
_OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cosn", "obs"})

# Spark takes a path for a pattern otherwise, and ``orders[1]`` for ``orders1``.
EXACT_PATHS = {"__globPaths__": "false"}


def local_path(destination: str | os.PathLike[str]) -> Path:
    """Return the directory that *destination* names: a path, or a URL of scheme ``file``.

    Raises:
        ConfigurationError: Another scheme, or nothing at all.
    """
    text = os.fspath(destination)
    if not text:
        raise ConfigurationError("the destination is empty: name a directory")
    scheme = SCHEME.match(text)
    if scheme is None:
        return Path(text).expanduser().absolute()
    url = urlsplit(text)
    if url.scheme == "file" and url.netloc in {"", "localhost"}:
        return Path(unquote(url.path)).absolute()
    raise ConfigurationError(
        f"cannot write parquet to {text}: a batch is published by one rename, which {scheme[1]} "
        f"does not have; use a local directory, or a table format: delta or iceberg"
    )


def file_url(path: str | os.PathLike[str]) -> str:
    """Return an absolute path as Spark takes it.

    With its scheme, or a cluster's default file system would take the path. Spark does not decode
    it, so nothing is percent-encoded.
    """
    return f"file://{os.fspath(path)}"


def is_object_store(destination: str) -> bool:
    """Return whether a URL is of an object store, by its scheme."""
    scheme = SCHEME.match(destination)
    return scheme is not None and scheme[1].lower() in _OBJECT_STORES
