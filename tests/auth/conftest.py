"""Fixtures for the tests of signing in."""

from __future__ import annotations

import pytest

from .servers import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Create a certificate authority that is not in the machine's trust store."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def _no_proxy_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's proxy settings from the environment."""
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
