"""Where settings come from besides options: the environment and a TOML file with profiles.

A name that is not known is an error that suggests the near one: a setting that is spelled wrongly
must not silently be its default.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sfpubsub.errors import ConfigurationError

logger = logging.getLogger("sfpubsub.config")

ENVIRONMENT_PREFIX = "SFPUBSUB_"

# Variables that choose a file and a table in it, and are no settings themselves.
CONFIG, PROFILE = "config", "profile"

# Variables of the project's scripts and tests, which run in the same environment, the directory of
# status files, which is needed where there are no settings, the switch of the accelerator, and the
# emulator that commands about one mean.
NOT_SETTINGS = (
    "VENV",
    "ICEBERG_VENV",
    "PROTO_ENV",
    "WALK_SEED",
    "STATE_DIR",
    "NATIVE",
    "EMULATOR_URL",
    "EMULATOR_TOKEN",
    "EMULATOR_CA_FILE",
)


class Given(NamedTuple):
    """A value, and where it stood."""

    value: str
    source: str


def near(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a hint for a user who wrote *name* instead of one of *known*.

    Args:
        name: What was written, without the prefix.
        known: What could have been, without the prefix.
        prefix: Prepended to each; it must not make all of them look alike.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"known are: {', '.join(prefix + other for other in names)}"


def from_environment(environ: Mapping[str, str], names: Collection[str]) -> dict[str, Given]:
    """Return the settings that are set and not empty, by name.

    Raises:
        ConfigurationError: A variable with our prefix is not known.
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
    """Return the settings of a TOML file: those at its top, and over them those of a profile.

    Args:
        path: The file.
        profile: Which ``[profile.NAME]`` table; None for the top alone.
        names: The known settings.
        secrets: Those of them that nobody else should read.
        files: Those of them that are paths, which are taken from the file's directory on.

    Raises:
        ConfigurationError: The file cannot be read, or says something that is not known.
    """
    top = _read(path)
    profiles = top.pop(PROFILE, {})
    if not isinstance(profiles, dict) or not all(isinstance(t, dict) for t in profiles.values()):
        raise ConfigurationError(f"{path}: profiles are tables, such as [profile.production]")
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
            if key in files:
                text = str(path.parent / expanded(text, f"{prefix}{key}"))
            found[key] = Given(text, f"{path}: {prefix}{key}")
    if any(name in table for table in (top, *profiles.values()) for name in secrets):
        warn_if_readable_by_others(path)
    return found


def profiles_in(path: Path) -> tuple[str, ...]:
    """Return the names of the profiles of a file that `from_file` has taken."""
    return tuple(_read(path).get(PROFILE, {}))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any]
    try:
        # Some editors put a byte order mark before the text.
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"the settings file {path} cannot be read: {error}") from error
    except (ValueError, RecursionError):  # TOML's own error, and that of bytes that are no UTF-8
        pass
    else:
        return found
    # Outside the block and not chained: the parser's error has the text with it, secrets included.
    raise ConfigurationError(f'{path} is not TOML: lines look like  endpoint = "host:7443"')


def _check_keys(path: Path, prefix: str, table: dict[str, Any], names: Collection[str]) -> None:
    for key in table:
        if key not in names:
            raise ConfigurationError(f"{path}: {prefix}{key} is not a setting: {near(key, names)}")


def _text(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigurationError(f"{where} is not a string or a number")
    return str(value)


def expanded(text: str, what: str) -> Path:
    """Return a path with its ``~`` replaced.

    Raises:
        ConfigurationError: There is no such home directory, or it is not a path.
    """
    if "\0" not in text:  # which the system's calls refuse with a ValueError
        try:
            return Path(text).expanduser()
        except RuntimeError:
            pass
    raise ConfigurationError(f"{what} is not a path, or its user has no home: {text!r}")


@cache  # once: a command loads its settings more than once, a key is read at each sign-in
def warn_if_readable_by_others(path: Path) -> None:
    """Log a warning if anyone but its owner may read *path*, which holds a secret."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        logger.warning("%s holds a secret and others may read it: chmod 600 it", path)
