"""Read settings from the environment and from a TOML file with profiles.

An unknown name is an error that suggests similar names: a misspelt setting must not silently fall
back to its default.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sfpubsub.errors import ConfigurationError

logger = logging.getLogger("sfpubsub.config")

# The position at the end of an error message of `tomllib`.
_POSITION = re.compile(r"\((at line \d+, column \d+|at end of document)\)\Z")

ENVIRONMENT_PREFIX = "SFPUBSUB_"

# The value of a setting for a file that means that no file is used.
NO_FILE = "none"

# Variables that select a file and a table in it; they are not settings themselves.
CONFIG, PROFILE = "config", "profile"

# Variables that are not settings: those of the project's scripts and tests, which run in the same
# environment; the directory for the user's state, which is needed without any settings; the
# switches for delta-rs and for the compiled decoder; and the emulator that emulator commands
# connect to.
NOT_SETTINGS = (
    "VENV",
    "ICEBERG_VENV",
    "PROTO_ENV",
    "WALK_SEED",
    "STATE_DIR",
    "DELTALAKE",
    "NATIVE",
    "EMULATOR_URL",
    "EMULATOR_TOKEN",
    "EMULATOR_CA_FILE",
)


class Given(NamedTuple):
    """The value of a setting, and its source."""

    value: str
    source: str


def near(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a hint for a user who wrote the unknown name *name*: a similar name, or all names.

    Args:
        name: The unknown name, without the prefix.
        known: The valid names, without the prefix.
        prefix: Prepended to each name in the hint. It is not part of the names, because a common
            prefix would make all names similar.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"the known names are: {', '.join(prefix + other for other in names)}"


def from_environment(environ: Mapping[str, str], names: Collection[str]) -> dict[str, Given]:
    """Return the non-empty settings in the environment, by name.

    Raises:
        ConfigurationError: A variable with the prefix ``SFPUBSUB_`` is unknown.
    """
    known = {name.upper(): name for name in (*names, CONFIG, PROFILE)}
    found = {}
    for variable, value in environ.items():
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if name == variable or name in NOT_SETTINGS:
            continue
        if name not in known:
            suggestion = near(name, known, ENVIRONMENT_PREFIX)
            raise ConfigurationError(f"{variable} is not a setting: {suggestion}")
        if value:
            found[known[name]] = Given(value, f"environment {variable}")
    return found


def from_file(
    path: Path,
    profile: str | None,
    names: Collection[str],
    *,
    secrets: Collection[str],
    files: Collection[str],
) -> dict[str, Given]:
    """Return the settings of a TOML file: the top-level ones, overridden by those of a profile.

    Args:
        path: The file.
        profile: Name of the ``[profile.NAME]`` table; None uses only the top level.
        names: The known settings.
        secrets: Settings that are secrets. If the file contains one, a warning is logged unless
            only the owner can read the file.
        files: Settings that are paths, resolved relative to the file's directory.

    Raises:
        ConfigurationError: The file cannot be read, is not valid, contains an unknown name, or does
            not contain the profile.
    """
    top = _read(path)
    profiles = top.pop(PROFILE, {})
    if not isinstance(profiles, dict) or not all(isinstance(t, dict) for t in profiles.values()):
        raise ConfigurationError(f"{path}: profiles must be tables, such as [profile.production]")
    tables = [("", top)]
    for name, table in profiles.items():
        if name == profile:
            tables.append((f"profile.{name}.", table))
        _check_keys(path, f"profile.{name}.", table, names)
    if profile is not None and profile not in profiles:
        raise ConfigurationError(f"{path} has no [profile.{profile}]: {near(profile, profiles)}")
    _check_keys(path, "", top, names)
    found = {}
    for prefix, table in tables:
        for key, value in table.items():
            text = _text(value, f"{path}: {prefix}{key}")
            if not text:
                continue
            if key in files and text != NO_FILE:
                text = str(path.parent / expanded(text, f"{prefix}{key}"))
            found[key] = Given(text, f"{path}: {prefix}{key}")
    if any(name in table for table in (top, *profiles.values()) for name in secrets):
        warn_if_readable_by_others(path)
    return found


def profiles_in(path: Path) -> tuple[str, ...]:
    """Return the profile names in a file that `from_file` has accepted."""
    return tuple(_read(path).get(PROFILE, {}))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any]
    where = ""
    try:
        # Some editors put a byte order mark before the text.
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"the settings file {path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # invalid TOML, or invalid UTF-8
        # The parser's error contains the text, which may include secrets: quote only the position.
        position = _POSITION.search(str(error))
        where = f" {position[1]}" if position else ""
    else:
        return found
    # Outside the except block, so that the parser's error is not chained.
    raise ConfigurationError(
        f'{path} is not valid TOML{where}: write settings like endpoint = "host:7443"'
    )


def _check_keys(path: Path, prefix: str, table: dict[str, Any], names: Collection[str]) -> None:
    for key in table:
        if key not in names:
            raise ConfigurationError(f"{path}: {prefix}{key} is not a setting: {near(key, names)}")


def _text(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigurationError(f"{where} must be a string or a number")
    return str(value)


def expanded(text: str, what: str) -> Path:
    """Return a path with ``~`` expanded.

    Raises:
        ConfigurationError: *text* is not a valid path, or names an unknown home directory.
    """
    if "\0" not in text:  # system calls reject it with a ValueError
        try:
            return Path(text).expanduser()
        except RuntimeError:
            pass
    raise ConfigurationError(
        f"{what} is not a valid path, or names an unknown home directory: {text!r}"
    )


@cache  # warn once: a command loads its settings more than once, and a key is read at each sign-in
def warn_if_readable_by_others(path: Path) -> None:
    """Log a warning if anyone but its owner may read *path*, which contains a secret."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        logger.warning("%s contains a secret, and other users can read it: use chmod 600", path)
