"""What users mean by the location of a table, or of a target that contains tables.

`kind_of` has the only rule: a path is written with a slash, a name in a catalog with a dot. All
commands and Python classes use it, by way of `locate`, so that a spelling never means a directory
in one place and a schema in another.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime.sql import quoted

What = Literal["table", "schema"]
Kind = Literal["directory", "url", "name"]

# The scheme of a URL for Spark, such as ``s3a://…``, ``hdfs://…`` or ``dbfs:/…``.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

# Schemes of object stores, which have no directories. An object appears atomically once it is
# written; a rename is a copy.
_OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cosn", "obs"})

# Directories that every shell writes without a slash, and that cannot be names in a catalog.
_DIRECTORIES = frozenset({".", "..", "~"})

# The parts of a name that Spark SQL accepts without quotes.
_PART = re.compile(r"[A-Za-z_]\w*")

# Read options that keep Spark from treating a path as a glob pattern, by which ``orders[1]`` would
# match ``orders1``.
EXACT_PATHS = {"__globPaths__": "false"}


def kind_of(spelling: str | os.PathLike[str], what: What) -> Kind:
    """Return whether a user means a directory, a URL or a name in a catalog.

    A string with a slash is a path or a URL; ``.``, ``..`` and ``~`` are paths as well, and so is
    every `os.PathLike`. A string with a dot and no slash is a name in a catalog, even one such as
    ``out.parquet``. Any other string is refused. The result depends on nothing but the arguments.

    Args:
        spelling: The location as the user wrote it.
        what: What is at the location: a ``table``, or a ``schema`` (or directory) with tables. Used
            only for the error message.

    Raises:
        ConfigurationError: *spelling* is empty, or neither a path nor a name in a catalog. The
            message says how to write each of them.
    """
    text = os.fspath(spelling)
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1].lower() != "file":
        return "url"
    if not isinstance(spelling, str) or "/" in text or text in _DIRECTORIES:
        return "directory"
    if not text:
        raise ConfigurationError(f"the {what} has an empty name: name a directory")
    parts = text.split(".")
    named = all(map(_PART.fullmatch, parts))
    if named and len(parts) > 1:
        return "name"
    if named:
        name = f"catalog.{text}" if what == "schema" else f"schema.{text}"
        default = " (the default catalog is spark_catalog)" if what == "schema" else ""
        raise ConfigurationError(
            f"{text} could be a directory or a {what}: write ./{text} for the directory, or "
            f"{name} for the {what}{default}"
        )
    name = "catalog.schema" if what == "schema" else "schema.table"
    raise ConfigurationError(
        f"{text} is neither a path, which has a slash, nor a {what} in a catalog, whose name has a "
        f"dot between parts of letters, digits and underscores: write ./{text} for the directory, "
        f"or {name} for the {what}"
    )


@dataclass(frozen=True, kw_only=True)
class Location:
    """A location in the form that Spark needs. Create one with `locate`."""

    address: str
    """An absolute path, a URL without a trailing slash, or a name in a catalog."""
    local: Path | None = None
    """The directory; None for URLs and names."""
    in_catalog: bool = False
    """Whether `address` is a name in a catalog."""

    @property
    def url(self) -> str:
        """`address` as Spark expects it: a local path becomes a ``file`` URL."""
        return self.address if self.local is None else file_url(self.local)

    @property
    def in_sql(self) -> str:
        """The name in the catalog, quoted for SQL."""
        return quoted(*self.address.split("."))

    def __str__(self) -> str:
        return self.address


def locate(spelling: str | os.PathLike[str], what: What) -> Location:
    """Return the location that a user wrote; for the arguments and errors, see `kind_of`."""
    kind = kind_of(spelling, what)
    text = os.fspath(spelling)
    if kind == "directory":
        path = local_path(text)
        return Location(address=str(path), local=path)
    return Location(address=text.rstrip("/"), in_catalog=kind == "name")


def local_path(text: str | os.PathLike[str]) -> Path:
    """Return the local directory named by a path or a ``file`` URL.

    Raises:
        ConfigurationError: *text* is empty, or a URL with another scheme or a host.
    """
    text = os.fspath(text)
    if not text:
        raise ConfigurationError("the path is empty: name a directory")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text).expanduser().absolute()
    url = urlsplit(text)
    if url.scheme == "file" and url.netloc in {"", "localhost"}:
        return Path(unquote(url.path)).absolute()
    raise ConfigurationError(f"{text} is not on this machine: name a local directory")


def file_url(path: str | os.PathLike[str]) -> str:
    """Return an absolute path as a URL for Spark.

    Without the scheme, Spark would use the cluster's default file system. The path is not
    percent-encoded, because Spark would not decode it.
    """
    return f"file://{os.fspath(path)}"


def is_object_store(destination: str) -> bool:
    """Return whether a URL's scheme is that of an object store."""
    scheme = _SCHEME.match(destination)
    return scheme is not None and scheme[1].lower() in _OBJECT_STORES
