"""Where a raw table may be, and whose it is.

A destination belongs to the subscriptions, topics and channels that were ever written to it. More
can join, in the company of one that it has; one that is left out keeps its position there.
Nothing here needs Spark, so a wrong destination is refused at once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sfpubsub.durable import replace_file, sync
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.beside import (
    IDENTITY_NAME,
    SIDECARS,
    STAGING_NAME,
    UPGRADE_NAME,
    check_place,
    owner_of,
    place_of,
    prepare,
    settle,
    sidecar_places,
)
from sfpubsub.spark.raw.layout import LAYOUTS, NEWEST, PREFIXES, Layout, newer_layout
from sfpubsub.spark.raw.lease import LEASE_NAME
from sfpubsub.spark.raw.paths import SCHEME, file_url, is_object_store, local_path

POSITION_NAME = "_position"
BATCH_PREFIX = "batch="

FORMATS = ("parquet", "delta", "iceberg")

# A table of a catalog, as Spark SQL writes it without quotes: schema.table, catalog.schema.table.
_CATALOG_TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

# The layout of Parquet that a table of an older one gets when it is opened: only what is beside it
# moves. Once it is taken over no older version writes it.
_ASIDE = 2

# The directory that a table format keeps its log in.
_LOGS = {"delta": "_delta_log", "iceberg": "metadata"}


_KINDS = {"managed": "managed subscription", "topic": "topic", "channel": "channel"}


@dataclass(frozen=True)
class Source:
    """What some of a table's rows come from."""

    kind: Literal["managed", "topic", "channel"]
    name: str
    """Names the source among those of its table, and in the column ``subscription``."""

    @classmethod
    def several(
        cls,
        subscription: str | Iterable[str] | None = None,
        topic: str | Iterable[str] | None = None,
        channel: str | Iterable[str] | None = None,
    ) -> tuple[Source, ...]:
        """Return those that were given: of each kind a name, some names, or None.

        Raises:
            ConfigurationError: There are none, or two have the same name.
        """
        found = [cls("managed", name) for name in _names(subscription)]
        found += [cls("topic", name) for name in _names(topic)]
        found += [cls("channel", name) for name in _names(channel)]
        if not found or not all(source.name for source in found):
            raise ConfigurationError(
                "a table takes one or more managed subscriptions, topics or channels: name them"
            )
        return joined((), found, "the table")

    @property
    def keeps_position(self) -> bool:
        """Whether the table says where it resumes; of a managed subscription the service does."""
        return self.kind != "managed"

    def __str__(self) -> str:
        return f"{_KINDS[self.kind]} {self.name}"


def sources_record(sources: Sequence[Source]) -> list[list[str]]:
    """Return the form in which a table notes whose it is."""
    return [[source.kind, source.name] for source in sources]


def recorded_sources(record: Mapping[str, Any]) -> tuple[Source, ...]:
    """Read what `sources_record` wrote, or the one source of an older table.

    Raises:
        ConfigurationError: It cannot be read.
    """
    pairs = record.get("sources")
    if pairs is None:
        return Source.several(record.get("managed"), record.get("topic"))
    try:
        found = tuple(Source(kind, name) for kind, name in pairs)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"these are no sources: {pairs!r}") from error
    if not found or not all(source.kind in _KINDS for source in found):
        raise ConfigurationError(f"these are no sources: {pairs!r}")
    return found


def joined(
    recorded: Sequence[Source], asked: Sequence[Source], where: object
) -> tuple[Source, ...]:
    """Return the sources of a table of *recorded* ones that is to take events of those *asked*.

    One that is new comes in the company of one that is recorded, so that a slip in the name of a
    table does not mix the events of two.

    Raises:
        ConfigurationError: All of them are new; or two of different kinds have the same name.
    """
    if recorded and not set(recorded) & set(asked):
        raise ConfigurationError(
            f"{where} belongs to {_listed(recorded)} and cannot take events of {_listed(asked)}: "
            f"name another destination; or, to add to it, name one of its own sources as well"
        )
    found: dict[str, Source] = {}
    # File systems and catalogs that do not tell case apart must not mix two of them up.
    for source in dict.fromkeys((*recorded, *asked)):
        other = found.setdefault(source.name.casefold(), source)
        if other is not source:
            raise ConfigurationError(
                f"{where} cannot tell {source} from {other}: write one of them to another table"
            )
    return tuple(found.values())


def _names(given: str | Iterable[str] | None) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


def _listed(sources: Sequence[Source]) -> str:
    return ", ".join(map(str, sources))


@dataclass(frozen=True)
class Destination:
    """Where a table is. Use `parse`."""

    format: str
    """One of `FORMATS`."""
    address: str
    """What Spark is told: an absolute path, a URL, or the name of a catalog's table."""
    local: Path | None
    """The directory, if it is one of this machine's."""
    in_catalog: bool = False
    """Whether `address` is the name of a catalog's table."""
    staging: Path | None = None
    """Of a parquet table: the directory in which staging and sidecars were asked for."""

    @classmethod
    def parse(
        cls,
        destination: str | os.PathLike[str],
        format: str,  # noqa: A002  # Spark's own word
        staging: str | os.PathLike[str] | None = None,
    ) -> Destination:
        """Return what *destination* names.

        Args:
            destination: A path; a URL of scheme ``file``, or for table formats of any scheme that
                Spark knows, or a table of a catalog: ``schema.table`` of the session's, or
                ``catalog.schema.table``. So a directory of such a name is ``./schema.table``.
            format: One of `FORMATS`.
            staging: With parquet: the directory in which to keep staging and sidecars; beside the
                table by default.

        Raises:
            ConfigurationError: It is not for this format, or there is no such format.
        """
        check_format(format)
        if format == "iceberg" and is_object_store(os.fspath(destination)):
            raise ConfigurationError(
                f"iceberg tables that are only a path need a rename that replaces nothing, which "
                f"{destination} does not have, and would lose commits: name a table of a catalog "
                f"(of type jdbc or rest), or use delta"
            )
        if staging is not None and format != "parquet":
            raise ConfigurationError(f"staging goes with format parquet; {format} has none")
        text = os.fspath(destination)
        if format != "parquet" and isinstance(destination, str) and _CATALOG_TABLE.fullmatch(text):
            _refuse_ambiguous(text, format)
            return cls(format, text, None, in_catalog=True)
        scheme = SCHEME.match(text)
        if format != "parquet" and scheme is not None and scheme[1] != "file":
            return cls(format, text.rstrip("/"), None)
        path = local_path(text)
        aside = None if staging is None else Path(os.path.realpath(local_path(staging)))
        return cls(format, str(path), path, staging=aside)

    @property
    def url(self) -> str:
        """`address`, with its scheme if it is a path."""
        return self.address if self.local is None else file_url(self.local)

    @property
    def in_sql(self) -> str:
        """The name of a catalog's table, with quotes."""
        return ".".join(f"`{part}`" for part in self.address.split("."))

    @property
    def name(self) -> str:
        """Its last part, for people."""
        return re.split(r"[/.]" if self.in_catalog else "/", self.address)[-1]

    def __str__(self) -> str:
        return self.address

    @property
    def beside(self) -> Path | None:
        """The directory with its sidecars, if it is on this machine.

        Beside a Parquet table; in that of a table format, whose readers go by its log.
        """
        if self.local is None or self.format != "parquet":
            return self.local
        return place_of(self.local, self.staging or _recorded_staging(self.local))

    def check(self, sources: Sequence[Source]) -> None:
        """Make sure, as far as can be told without Spark, that it is or can become theirs.

        Changes nothing.

        Raises:
            ConfigurationError: It is something else, belongs to other sources, or cannot be
                written.
        """
        if self.local is not None:
            check_destination(self.local, sources, self.format, self.staging)


def format_of(raw: str | os.PathLike[str], default: str) -> str:
    """Return the format of the raw table at a path of this machine; of any other *default*."""
    try:
        path = local_path(raw)
    except ConfigurationError:
        return default
    if not path.is_dir():
        return default
    for format_, log in _LOGS.items():
        if (path / log).is_dir():
            return format_
    return "parquet"


def check_raw_table(table: Destination) -> None:
    """Make sure, as far as can be told without Spark, that there is a raw table to read.

    Raises:
        ConfigurationError: There is none, or it has another format.
    """
    path = table.local
    if path is None:
        return
    if not path.is_dir():
        raise ConfigurationError(f"{table} is not a directory: name the raw table to read")
    for other, log in _LOGS.items():
        if (path / log).is_dir() and table.format != other:
            raise ConfigurationError(
                f"{table} is a table of format {other}: say so with --from-format"
            )
    mark = _LOGS.get(table.format, IDENTITY_NAME)
    if not (path / mark).exists():
        inner = sorted(entry.parent.name for entry in path.glob(f"*/{mark}"))
        hint = f"; it holds {', '.join(inner)}, which are: name one of them" if inner else ""
        raise ConfigurationError(
            f"{table} is not a raw table of format {table.format} (it has no {mark}){hint}"
        )


def _refuse_ambiguous(name: str, format: str) -> None:  # noqa: A002  # Spark's own word
    if Path(name, _LOGS[format]).is_dir():
        raise ConfigurationError(
            f"{name} is a directory here that holds a table, and the name of a table of a catalog: "
            f"write ./{name} for the directory, or name the catalog as well"
        )


def check_format(name: str) -> None:
    """Make sure that the format exists.

    Raises:
        ConfigurationError: It does not, or not yet.
    """
    if name not in FORMATS:
        raise ConfigurationError(f"format {name!r} is not available; there is {', '.join(FORMATS)}")


def check_destination(
    path: Path,
    sources: Sequence[Source],
    format: str = "parquet",  # noqa: A002  # Spark's own word
    staging: Path | None = None,
) -> None:
    """Make sure that *path* can become, or already is, the table of *sources*. Changes nothing.

    Whose a table of a table format is, is told by its log, which Spark reads.

    Raises:
        ConfigurationError: It is something else, belongs to other sources, or cannot be written;
            or its staging cannot be where it is to be.
    """
    try:
        if path.exists():
            _check_existing(path, sources, format)
        elif path.is_symlink():
            raise ConfigurationError(f"{path} is a link to a directory that does not exist")
        else:
            parent = next(parent for parent in path.parents if parent.exists())
            if not parent.is_dir():
                raise ConfigurationError(f"{path} cannot be made: {parent} is not a directory")
            _check_writable(parent, f"{path} cannot be made: {parent} is not writable")
        if format == "parquet":
            _check_staging(path, staging)
            check_place(path, staging or _recorded_staging(path))
    except OSError as error:
        raise _refusal(path, error) from error


def claim_table(
    path: Path, sources: Sequence[Source], staging: Path | None = None
) -> tuple[Path, Layout]:
    """Write on a table's directory whose it is, and make its place for staging and sidecars.

    Call under the lease. It can die at any step, and be called again:

    1. Make the place, and try whether a rename leads from there into the table.
    2. Write the identity. From now on readers look there, and older versions keep off.
    3. Move there what layout 1 kept in the table; readers look in both until that is done.

    Args:
        path: The table's directory, which exists.
        sources: Whose it is to be, and those that it has already.
        staging: As for `Destination.parse`; by default where it was before, or beside the table.

    Returns:
        The place, and the layout: that of the rows that are there, or else the newest.

    Raises:
        ConfigurationError: As `check_destination`; or it cannot be written.
    """
    check_destination(path, sources, staging=staging)
    staging = staging or _recorded_staging(path)
    place = place_of(path, staging)
    if (place / UPGRADE_NAME / "ready").exists():
        raise ConfigurationError(f"{path} is being upgraded: sfpubsub upgrade finishes that")
    found = _identity(path)
    is_written = _is_written(path)
    layout = NEWEST
    if found is not None and found.layout < NEWEST.number and is_written:
        layout = LAYOUTS[_ASIDE]
    recorded = found.sources if found is not None and is_written else ()
    identity = _Identity(joined(recorded, sources, path), staging, layout.number)
    try:
        prepare(path, place)
        if _identity(path) != identity:
            replace_file(path / IDENTITY_NAME, identity.to_json())
        settle(path, place)
    except OSError as error:
        raise _refusal(path, error) from error
    return place, layout


def claim_upgraded(path: Path) -> None:
    """Write on a table's directory that its rows have the newest layout, or will at once.

    Raises:
        ConfigurationError: It does not say whose it is.
    """
    identity = _identity(path)
    if identity is None:
        raise ConfigurationError(f"{path} is not a parquet table of sfpubsub")
    replace_file(path / IDENTITY_NAME, replace(identity, layout=NEWEST.number).to_json())


def sources_of(path: Path) -> tuple[Source, ...]:
    """Return whose Parquet table it is; none if it is none yet.

    Raises:
        ConfigurationError: The table's identity cannot be read.
    """
    identity = _identity(path)
    return identity.sources if identity else ()


def local_sidecars(path: Path, name: str) -> list[Path]:
    """Return the directories of this machine that a table's sidecar may be in, whatever its format.

    Args:
        path: The table's directory.
        name: Such as ``_gaps``.

    Raises:
        ConfigurationError: The table's identity cannot be read.
    """
    if any((path / log).is_dir() for log in _LOGS.values()):
        return [path / name]
    return sidecar_places(path, _recorded_staging(path), name)


def make_table_directory(path: Path) -> None:
    """Make the table's directory durable, with those above it.

    Raises:
        ConfigurationError: It cannot be made.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        for place in missing:
            sync(place.parent)
    except OSError as error:
        raise _refusal(path, error) from error


def _check_existing(path: Path, sources: Sequence[Source], format: str) -> None:  # noqa: A002
    if not path.is_dir():
        raise ConfigurationError(f"{path} is not a directory: name another destination")
    _check_writable(path, f"{path} is not writable")
    owner = _identity(path)
    log = _LOGS.get(format)
    if owner is not None and log is not None:
        raise ConfigurationError(
            f"{path} is a parquet table of {_listed(owner.sources)}: name another destination for "
            f"format {format}"
        )
    if owner is None and not (log is not None and (path / log).exists()):
        foreign = sorted(name for name in os.listdir(path) if not _is_ours(name))
        if foreign:
            raise ConfigurationError(
                f"{path} is not empty and not a table of sfpubsub (it holds {foreign[0]!r}): name "
                f"another destination"
            )
    elif owner is not None and _is_written(path):
        joined(owner.sources, sources, path)


def _check_writable(path: Path, message: str) -> None:
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{message}: change its permissions or name another destination")


def _is_ours(name: str) -> bool:
    """Whether a start that did not get as far as the identity file may have made it."""
    return name in {LEASE_NAME, STAGING_NAME, *SIDECARS} or name.startswith(IDENTITY_NAME)


def _is_written(path: Path) -> bool:
    """Whether it holds rows or a position. Until then a mistyped topic must not keep a path."""
    return any(name.startswith(PREFIXES) or name == POSITION_NAME for name in os.listdir(path))


@dataclass(frozen=True)
class _Identity:
    """What is written on a table's directory."""

    sources: tuple[Source, ...]
    staging: Path | None
    layout: int

    def to_json(self) -> str:
        record = {
            "layout": self.layout,
            "format": "parquet",
            "sources": sources_record(self.sources),
        }
        return json.dumps(record | ({"staging": str(self.staging)} if self.staging else {}))


def _identity(path: Path) -> _Identity | None:
    try:
        text = (path / IDENTITY_NAME).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    number: object = None
    try:
        found = json.loads(text)
        number = found["layout"]
        if number in LAYOUTS and found["format"] in FORMATS:
            sources = recorded_sources(found)
            staging = found.get("staging")
            return _Identity(sources, Path(staging) if staging else None, number)
        reason = f"layout {number}, format {found['format']}"
    except (ValueError, KeyError, TypeError, ConfigurationError) as error:
        reason = f"unreadable: {error}"
    if isinstance(number, int) and number > NEWEST.number:
        raise ConfigurationError(newer_layout(path, number))
    raise ConfigurationError(
        f"{path / IDENTITY_NAME} is not of this version of sfpubsub ({reason}): name another "
        f"destination"
    )


def _recorded_staging(path: Path) -> Path | None:
    identity = _identity(path)
    return identity.staging if identity else None


def _check_staging(path: Path, staging: Path | None) -> None:
    """Make sure that what is kept for a table is not left behind for another place."""
    kept = place_of(path, _recorded_staging(path))
    if staging is None or kept == place_of(path, staging):
        return
    owner = owner_of(kept)
    if owner is not None and path.exists() and owner.exists() and owner.samefile(path):
        raise ConfigurationError(
            f"the sidecars of {path} are in {kept}: leave out --staging (staging=), or move that "
            f"directory to {staging} first"
        )


def _refusal(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be written ({error.strerror}): name another destination"
    )
