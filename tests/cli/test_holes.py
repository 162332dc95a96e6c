"""Tests of the list of known security holes, and of what is said about them elsewhere."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from sfpubsub.cli.holes import HOLES, holes
from tests.pages import page

ROOT = Path(__file__).parent.parent.parent


def found(**installed: str) -> set[str]:
    """Return the advisories of an environment with only the given packages."""

    def version(package: str) -> str:
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    return {hole.advisory for hole, _ in holes(version)}


@pytest.mark.parametrize(
    ("package", "version", "advisories"),
    [
        ("grpcio", "1.60.1", {"CVE-2024-7246"}),
        ("grpcio", "1.60.2", set()),
        ("grpcio", "1.61.0", {"CVE-2024-7246"}),
        ("grpcio", "1.65.4", set()),
        ("grpcio", "1.66.0rc1", set()),
        ("protobuf", "4.25.8", {"CVE-2026-0994"}),
        ("protobuf", "5.29.4", {"CVE-2025-4565", "CVE-2026-0994"}),
        ("protobuf", "5.29.6", set()),
        ("protobuf", "6.33.4", {"CVE-2026-0994"}),
        ("protobuf", "7.0", set()),
        ("requests", "2.33", set()),
        ("pyarrow", "14.0.1", set()),
        ("pyarrow", "15.0.0", {"CVE-2026-25087"}),
        ("something", "0.1", set()),
    ],
)
def test_a_version_has_the_holes_of_its_line(package: str, version: str, advisories: set[str]):
    """A hole that was mended in several lines affects, of each, the versions before its mend."""
    assert found(**{package: version}) == advisories


def test_what_is_not_installed_has_no_holes():
    """Packages of extras that are not installed are not reported."""
    assert found() == set()


def test_the_pinned_versions_have_no_known_hole():
    """`constraints.txt` says which versions are safe."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert {hole.package for hole in HOLES} <= pins.keys()
    assert found(**pins) == set()


def test_the_install_page_lists_the_first_safe_versions():
    """The page on installing has a row for each hole, with its id and its first safe versions."""
    text = page("install").read_text()
    for hole in HOLES:
        safe = ", ".join(version for _, version in hole.affected)
        assert f"| {hole.package} | {hole.advisory} | {safe} |" in text
