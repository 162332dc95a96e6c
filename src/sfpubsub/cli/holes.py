"""Known security holes of the libraries that this package uses, as data.

The package's requirements allow every version with which it works, because platforms pin theirs;
`sfpubsub doctor` warns of those with a known hole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple


class Hole(NamedTuple):
    """A published hole of a library."""

    package: str
    advisory: str
    """Id in the CVE list."""
    affected: tuple[tuple[str, str], ...]
    """The affected ranges of versions: the first affected version, and the first safe one."""
    about: str
    """What can happen, and whether this package uses that part of the library."""

    @property
    def safe(self) -> str:
        """The first safe version of the newest affected line."""
        return self.affected[-1][1]

    def affects(self, installed: str) -> bool:
        """Return whether version *installed* has the hole."""
        number = _numbers(installed)
        return any(_numbers(first) <= number < _numbers(safe) for first, safe in self.affected)


# Of the lines that were mended (grpcio 1.60.2 is safe, 1.61.0 is not), each is a range of its own.
HOLES = (
    Hole(
        "grpcio",
        "CVE-2024-7246",
        (
            ("0", "1.58.3"),
            ("1.59", "1.59.5"),
            ("1.60", "1.60.2"),
            ("1.61", "1.61.3"),
            ("1.62", "1.62.3"),
            ("1.63", "1.63.2"),
            ("1.64", "1.64.3"),
            ("1.65", "1.65.4"),
        ),
        "behind an HTTP/2 proxy, headers of one client can reach another",
    ),
    Hole(
        "protobuf",
        "CVE-2025-4565",
        (("0", "4.25.8"), ("5", "5.29.5"), ("6", "6.31.1")),
        "a nested message exhausts the stack of the pure-Python parser",
    ),
    Hole(
        "protobuf",
        "CVE-2026-0994",
        (("0", "5.29.6"), ("6", "6.33.5")),
        "nested JSON exhausts the stack of json_format.ParseDict, which sfpubsub does not use",
    ),
    Hole(
        "requests",
        "CVE-2024-35195",
        (("0", "2.32.0"),),
        "a connection opened without verification is used again with it",
    ),
    Hole(
        "requests",
        "CVE-2024-47081",
        (("0", "2.32.4"),),
        "a crafted URL is sent another host's credentials from .netrc",
    ),
    Hole(
        "requests",
        "CVE-2026-25645",
        (("0", "2.33.0"),),
        "extract_zipped_paths, which sfpubsub does not use, trusts files in a shared directory",
    ),
    Hole(
        "urllib3",
        "CVE-2026-44431",
        (("1.23", "2.7.0"),),
        "credentials can follow a redirect to another host, in calls that sfpubsub does not make",
    ),
    Hole(
        "PyJWT",
        "CVE-2026-32597",
        (("0", "2.12.0"),),
        "a token with an unknown critical header is accepted; sfpubsub only signs tokens",
    ),
    Hole(
        "orjson",
        "CVE-2025-67221",
        (("0", "3.11.6"),),
        "deeply nested values exhaust the stack",
    ),
    Hole(
        "pyarrow",
        "CVE-2023-47248",
        (("0.14", "14.0.1"),),
        "a crafted Arrow or Parquet file runs code",
    ),
    Hole(
        "pyarrow",
        "CVE-2026-25087",
        (("15", "23.0.1"),),
        "a crafted file corrupts memory, in a call that Python does not have",
    ),
)


def holes(installed: Callable[[str], str] = version) -> Iterator[tuple[Hole, str]]:
    """Yield the known holes of the installed libraries, each with the installed version.

    Args:
        installed: Returns the version of a package, or raises `PackageNotFoundError`.
    """
    for hole in HOLES:
        try:
            found = installed(hole.package)
        except PackageNotFoundError:
            continue
        if hole.affects(found):
            yield hole, found


def _numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a version, without the suffix of a pre-release and trailing zeros."""
    found = re.match(r"\d+(\.\d+)*", release)
    numbers = [int(each) for each in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
