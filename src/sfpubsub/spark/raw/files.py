"""Small text files of a table, on a local disk or any file system that Spark's JVM supports.

Each `Files` object handles one directory: it lists the names of the files, and reads, replaces or
removes a file. A reader sees either the old or the new contents of a file, and after
`Files.replace` the new contents are durable.
"""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from pyspark.sql import SparkSession

from sfpubsub.durable import make_directory, replace_file
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.runtime.paths import is_object_store
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line

T = TypeVar("T")

# Attempts to read a file that is replaced between opening and reading. Writers replace a file every
# few seconds at most, so two collisions in a row are rare.
_READS = 5


class Files(ABC):
    """The files of one directory. Thread-safe, if each file has only one writer."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Path or URL of the directory, for messages and for Spark."""

    @abstractmethod
    def make(self) -> None:
        """Create the directory, so that Spark can read it even while it is empty.

        Raises:
            WriteError: The directory could not be created.
        """

    @abstractmethod
    def read(self, name: str) -> str | None:
        """Return the contents of a file, or None if it does not exist.

        Raises:
            ConfigurationError: The file cannot be read.
        """

    @abstractmethod
    def replace(self, name: str, text: str) -> None:
        """Replace the contents of a file durably.

        Raises:
            WriteError: The file could not be replaced; it has either the old or the new contents.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Return the sorted names of the files; empty if the directory does not exist.

        They include temporary files (``*.tmp``) that an interrupted `replace` has left behind.

        Raises:
            ConfigurationError: The directory cannot be listed.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it exists. It may reappear after a crash.

        Raises:
            WriteError: The file could not be removed.
        """


class LocalFiles(Files):
    """A directory on a local POSIX file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def place(self) -> str:
        """See `Files`."""
        return str(self._directory)

    def make(self) -> None:
        """See `Files`."""
        try:
            make_directory(self._directory)
        except OSError as error:
            raise WriteError(f"{self.place} cannot be created: {error.strerror}") from error

    def read(self, name: str) -> str | None:
        """See `Files`."""
        path = self._directory / name
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error

    def replace(self, name: str, text: str) -> None:
        """See `Files`."""
        try:
            replace_file(self._directory / name, text)
        except OSError as error:
            raise WriteError(
                f"{self._directory / name} was not written: {error.strerror}"
            ) from error

    def names(self) -> list[str]:
        """See `Files`."""
        try:
            return sorted(entry.name for entry in os.scandir(self._directory) if entry.is_file())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigurationError(f"{self.place} cannot be listed: {error.strerror}") from error

    def remove(self, name: str) -> None:
        """See `Files`."""
        path = self._directory / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise WriteError(f"{path} was not removed: {error.strerror}") from error


class HadoopFiles(Files):
    """A directory on a file system of Spark's JVM, such as ``s3a://…`` or ``hdfs://…``.

    In an object store, a new file is written directly under its final name. It appears atomically
    when it is closed, and replaces the old file. (A rename there is not atomic: it would delete the
    old file, and then copy the new one.) On other file systems, such as HDFS, a temporary file is
    renamed to the final name. Temporary files have hidden names, so Spark ignores them.

    Args:
        spark: A classic session, not Spark Connect.
        directory: URL of the directory.

    Raises:
        ConfigurationError: Spark does not support the file system.
    """

    def __init__(self, spark: SparkSession, directory: str) -> None:
        context = spark.sparkContext
        self._gateway = cast("Any", context._gateway)
        self._place = directory
        fs = self._gateway.jvm.org.apache.hadoop.fs
        try:
            self._path = fs.Path(directory)
            configuration = context._jsc.hadoopConfiguration()
            # FileContext instead of FileSystem, because only its rename can replace a file.
            self._files = fs.FileContext.getFileContext(self._path.toUri(), configuration)
        except SPARK_ERRORS as error:
            raise ConfigurationError(
                f"Spark cannot use the file system of {directory}: {first_line(error)}"
            ) from error

    @property
    def place(self) -> str:
        """See `Files`."""
        return self._place

    def make(self) -> None:
        """See `Files`."""
        self._written("", lambda: self._files.mkdir(self._path, self._default_permission, True))

    def read(self, name: str) -> str | None:
        """See `Files`."""
        path = self._named(name)
        for left in reversed(range(_READS)):
            try:
                return self._text(path)
            except SPARK_ERRORS as error:
                if not left or not _was_replaced(error):
                    raise ConfigurationError(
                        f"{path} cannot be read: {first_line(error)}"
                    ) from error
        raise AssertionError("bug in sfpubsub: the last attempt neither returned nor raised")

    def _text(self, path: Any) -> str | None:
        if not self._files.util().exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._gateway.jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def replace(self, name: str, text: str) -> None:
        """See `Files`."""
        self._written(name, lambda: self._replace(name, text.encode()))

    def _replace(self, name: str, content: bytes) -> None:
        if is_object_store(self._place):
            self._write(self._named(name), content, "CREATE", "OVERWRITE")
            return
        draft = self._named(f".{name}.{uuid.uuid4().hex}.tmp")
        try:
            self._write(draft, content, "CREATE")
            self._files.rename(draft, self._named(name), self._overwrite())
        except SPARK_ERRORS:
            if self._files.util().exists(draft):
                self._files.delete(draft, False)
            raise

    def _write(self, path: Any, content: bytes, *flags: str) -> None:
        stream = self._files.create(path, self._flags(*flags), self._no_options("CreateOpts"))
        try:
            stream.write(content)
            # In an object store, a file is durable once it is closed.
            if stream.hasCapability("hsync"):
                stream.hsync()
        finally:
            stream.close()

    def names(self) -> list[str]:
        """See `Files`."""
        try:
            if not self._files.util().exists(self._path):
                return []
            entries = self._files.util().listStatus(self._path)
            return sorted(str(each.getPath().getName()) for each in entries if each.isFile())
        except SPARK_ERRORS as error:
            raise ConfigurationError(
                f"{self._place} cannot be listed: {first_line(error)}"
            ) from error

    def remove(self, name: str) -> None:
        """See `Files`."""
        path = self._named(name)
        try:
            if self._files.util().exists(path):
                self._files.delete(path, False)
        except SPARK_ERRORS as error:
            raise WriteError(f"{path} was not removed: {first_line(error)}") from error

    def _written(self, name: str, write: Callable[[], T]) -> T:
        try:
            return write()
        except SPARK_ERRORS as error:
            path = os.path.join(self._place, name)
            raise WriteError(f"{path} was not written: {first_line(error)}") from error

    def _named(self, name: str) -> Any:
        return self._gateway.jvm.org.apache.hadoop.fs.Path(self._path, name)

    # Java's varargs, enumerations and nested classes, as py4j requires them.

    @property
    def _default_permission(self) -> Any:
        permission = self._gateway.jvm.org.apache.hadoop.fs.permission.FsPermission
        return permission.getDirDefault()

    def _flags(self, *names: str) -> Any:
        jvm = self._gateway.jvm
        flags = [getattr(jvm.org.apache.hadoop.fs.CreateFlag, name) for name in names]
        return jvm.java.util.EnumSet.of(*flags)

    def _no_options(self, kind: str) -> Any:
        return self._gateway.new_array(self._option(kind), 0)

    def _overwrite(self) -> Any:
        rename = self._option("Rename")
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        return options

    def _option(self, kind: str) -> Any:
        return getattr(self._gateway.jvm.org.apache.hadoop.fs, f"Options${kind}")


def _was_replaced(error: BaseException) -> bool:
    """Return whether *error* means that an object was replaced between opening and reading."""
    text = str(error)
    return "Status Code: 412" in text or "RemoteFileChangedException" in text


def files_at(table: Path | str, name: str, spark: SparkSession | None) -> Files:
    """Return the `Files` object for the directory *name* of a table.

    Args:
        table: Directory of the table: a local path, or a URL of another file system.
        name: Name of the directory, such as ``_gaps``.
        spark: Used to access other file systems; not needed for a local path.

    Raises:
        ConfigurationError: Spark does not support the file system, or *spark* is None.
    """
    if isinstance(table, Path):
        return LocalFiles(table / name)
    if spark is None:
        raise ConfigurationError(f"{table} is not local: pass a Spark session to access it")
    return HadoopFiles(spark, f"{table.rstrip('/')}/{name}")
