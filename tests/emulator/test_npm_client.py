"""The most used client of another language works against the emulator as it is published."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "npm_client.sh"

LONGEST_S = 600
"""With the download of the package; a run without it takes seconds."""


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("npm")), reason="node and npm are not there"
)
def test_the_npm_client():
    """Every kind of sign-in, publishing, subscribing, resuming, and a managed subscription whose
    Tooling record it reads first, over TLS."""
    done = subprocess.run(
        [str(SCRIPT)],
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
