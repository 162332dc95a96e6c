"""The most widely used Pub/Sub API client in another language works against the emulator in its
published form.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..streaming.test_foreign import CACHE, needs_node

SCRIPT = Path(__file__).parents[2] / "scripts" / "npm_client.sh"

LONGEST_S = 600
"""Timeout of the script. It includes the download of the package; without it a run takes
seconds."""


@pytest.mark.slow
@needs_node
def test_npm_client():
    """Over TLS, the npm client signs in with each of its four methods, publishes, subscribes,
    resumes, and runs a managed subscription whose Tooling record it reads first.
    """
    done = subprocess.run(
        [str(SCRIPT), str(CACHE / "npm_client")],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first == {
        "sign_ins": [
            "user-supplied",
            "username-password",
            "oauth-client-credentials",
            "oauth-jwt-bearer",
        ],
        "published": 6,
        "received": 6,
        "committed": 1,
    }
    assert second == {"resumed": 2, "stopped": True}
