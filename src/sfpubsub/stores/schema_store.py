"""Where schemas are kept, so that raw events can be decoded offline and after a restart.

A schema id names its content for good, so an entry is written once and never goes stale. The cache
looks here before it asks the service, and keeps here what the service answered. A store is touched
in the threads that fetch schemas: the one that iterates, and threads of the client's own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from abc import ABC, abstractmethod
from pathlib import Path

from sfpubsub.durable import make_directory, replace_file
from sfpubsub.errors import ConfigurationError

logger = logging.getLogger("sfpubsub.client")

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9_-]")

# Characters of an id that its file's name shows; the service's ids have 22.
_SHOWN = 40


class SchemaStore(ABC):
    """Avro schemas by id. Thread-safe."""

    @abstractmethod
    def get(self, schema_id: str) -> str | None:
        """Return the schema as JSON text, or None if it is not here."""

    @abstractmethod
    def put(self, schema_id: str, schema_json: str) -> None:
        """Keep a schema; durable when this returns."""


class FileSchemaStore(SchemaStore):
    """Schemas in a directory, one small JSON file each.

    Any number of threads and processes may share it: a file is complete before it has its name, and
    every writer of a schema writes the same. Each file carries a hash of what it holds, so
    one that was damaged (by a disk, by an editor) is noticed, and is then fetched and written
    again.

    Args:
        directory: Made with the first schema.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return self._directory

    def get(self, schema_id: str) -> str | None:
        """Return the schema as JSON text, or None if it is not here or its file is damaged.

        Raises:
            ConfigurationError: The file cannot be read.
        """
        path = self._path(schema_id)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        return schema_in(text, schema_id, str(path))

    def put(self, schema_id: str, schema_json: str) -> None:
        """Keep a schema; durable when this returns.

        Raises:
            ConfigurationError: It could not be written.
        """
        try:
            make_directory(self._directory)
            replace_file(self._path(schema_id), schema_text(schema_id, schema_json))
        except OSError as error:
            raise ConfigurationError(
                f"the schema store {self._directory} cannot be written: {error.strerror}"
            ) from error

    def _path(self, schema_id: str) -> Path:
        return self._directory / schema_file_name(schema_id)

    def __repr__(self) -> str:
        return f"FileSchemaStore({str(self._directory)!r})"


def schema_file_name(schema_id: str) -> str:
    """Return the name of a schema's file."""
    # Ids differ by case alone, and some file systems do not tell that apart: the readable part
    # is for people, the hash is the name.
    shown = _NOT_IN_A_NAME.sub("_", schema_id.lower())[:_SHOWN]
    digest = hashlib.blake2b(schema_id.encode(), digest_size=8).hexdigest()
    return f"{shown}.{digest}.json"


def schema_text(schema_id: str, schema_json: str) -> str:
    """Return the contents of a schema's file."""
    document = {
        "schema_id": schema_id,
        "check": _check(schema_id, schema_json),
        "schema": schema_json,
    }
    return json.dumps(document) + "\n"  # one line, as Spark reads JSON


def schema_in(text: str, schema_id: str, path: str) -> str | None:
    """Return the schema that a file holds; None, and a line of the log, if it is damaged.

    Args:
        text: What is in the file.
        schema_id: What is to be in it.
        path: The file, for messages.
    """
    try:
        document = json.loads(text)
        schema = document["schema"]
        if document["check"] == _check(schema_id, schema):
            return str(schema)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # said below
    logger.warning("%s is damaged and is not used: it is to hold schema %s", path, schema_id)
    return None


def _check(schema_id: str, schema_json: str) -> str:
    # The id's own hash leaves out what the canonical form does: docs, which hold Salesforce's
    # types, and defaults. And the service's ids need not be that hash.
    digest = hashlib.sha256(schema_id.encode())
    digest.update(b"\0")
    digest.update(schema_json.encode())
    return digest.hexdigest()
