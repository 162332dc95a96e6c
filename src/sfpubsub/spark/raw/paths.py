"""Convert the paths and URLs given by users into local paths, or into URLs for Spark."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sfpubsub.errors import ConfigurationError

# The scheme of a URL for Spark, such as ``s3a://…``, ``hdfs://…`` or ``dbfs:/…``.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

# Schemes of object stores, which have no directories. An object appears atomically once it is
# written; a rename is a copy.
_OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cosn", "obs"})

# Read options that keep Spark from treating a path as a glob pattern, by which ``orders[1]`` would
# match ``orders1``.
EXACT_PATHS = {"__globPaths__": "false"}


def local_path(destination: str | os.PathLike[str]) -> Path:
    """Return the local directory named by *destination*, a path or a ``file`` URL.

    Raises:
        ConfigurationError: *destination* is empty, or a URL with another scheme or a host.
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
        f"cannot write parquet to {text}: a batch is published with one rename, which {scheme[1]} "
        f"does not support; use a local directory, or a table format: delta or iceberg"
    )


def file_url(path: str | os.PathLike[str]) -> str:
    """Return an absolute path as a URL for Spark.

    Without the scheme, Spark would use the cluster's default file system. The path is not
    percent-encoded, because Spark would not decode it.
    """
    return f"file://{os.fspath(path)}"


def is_object_store(destination: str) -> bool:
    """Return whether a URL's scheme is that of an object store."""
    scheme = SCHEME.match(destination)
    return scheme is not None and scheme[1].lower() in _OBJECT_STORES
