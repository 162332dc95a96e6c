"""Schema stores: keep Avro schemas, so that raw events can be decoded offline and after a restart.

A schema id always refers to the same content, so an entry is written once and never goes stale. The
schema cache searches a store before it requests a schema from the service, and stores the schema
that the service returns. A store is used in the threads that fetch schemas: the thread that
iterates over a subscription, and the client's worker threads.
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

# Number of characters of an id shown in its file name; the service's ids have 22.
_SHOWN = 40


class SchemaStore(ABC):
    """Stores Avro schemas by id. Thread-safe."""

    @abstractmethod
    def get(self, schema_id: str) -> str | None:
        """Return the schema as JSON text; None if it is not stored."""

    @abstractmethod
    def put(self, schema_id: str, schema_json: str) -> None:
        """Store a schema durably."""


class FileSchemaStore(SchemaStore):
    """Stores schemas in a directory, each in a small JSON file.

    Any number of threads and processes may share it: a file is written completely before it is
    renamed into place, and all writers of a schema write the same content. Each file contains a
    hash of its content, so damage by a disk or an editor is detected. The client then requests the
    schema from the service and writes the file again.

    Args:
        directory: Directory for the files; created when the first schema is written.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    @property
    def directory(self) -> Path:
        """The directory that contains the files."""
        return self._directory

    def get(self, schema_id: str) -> str | None:
        """Return the schema as JSON text; None if it is not stored or its file is damaged.

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
        """Store a schema durably.

        Raises:
            ConfigurationError: The schema could not be written.
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
    """Return the file name for a schema id. Names for different ids never differ only by case."""
    # Ids may differ only by case, which some file systems ignore. The hash makes the name unique,
    # and the characters of the id make it readable.
    shown = _NOT_IN_A_NAME.sub("_", schema_id.lower())[:_SHOWN]
    digest = hashlib.blake2b(schema_id.encode(), digest_size=8).hexdigest()
    return f"{shown}.{digest}.json"


def schema_text(schema_id: str, schema_json: str) -> str:
    """Return the content of a schema's file: one line of JSON, including a hash of the schema."""
    document = {
        "schema_id": schema_id,
        "check": _check(schema_id, schema_json),
        "schema": schema_json,
    }
    return json.dumps(document) + "\n"  # one line, because Spark reads JSON line by line


def schema_in(text: str, schema_id: str, path: str) -> str | None:
    """Return the schema in a file; log a warning and return None if the file is damaged.

    Args:
        text: Content of the file.
        schema_id: The expected schema id.
        path: The file, for the log message.
    """
    try:
        document = json.loads(text)
        schema = document["schema"]
        if document["check"] == _check(schema_id, schema):
            return str(schema)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # reported below
    logger.warning("%s is damaged and is ignored: it should contain schema %s", path, schema_id)
    return None


def _check(schema_id: str, schema_json: str) -> str:
    # The schema id cannot be used as the hash. It may be one, but only of the canonical form, which
    # omits defaults and docs (and with them Salesforce's types), and the service does not guarantee
    # even that.
    digest = hashlib.sha256(schema_id.encode())
    digest.update(b"\0")
    digest.update(schema_json.encode())
    return digest.hexdigest()
