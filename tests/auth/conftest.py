"""Fixtures for the tests of signing in."""

from __future__ import annotations

from pathlib import Path

import pytest

from .servers import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Create a certificate authority that is not in the machine's trust store."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own state directory: token files outlive the servers of a test, whose port
    a later test may get.
    """
    directory = tmp_path / "state"
    monkeypatch.setenv("SFPUBSUB_STATE_DIR", str(directory))
    return directory


@pytest.fixture(autouse=True)
def _no_proxy_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's proxy settings from the environment."""
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
