"""The directory for a user's state: status files, and the newest refresh tokens."""

from __future__ import annotations

import os
from pathlib import Path


def state_dir() -> Path:
    """Return the directory for the user's state; ``SFPUBSUB_STATE_DIR`` overrides the default.

    The directory may not exist yet.
    """
    given = os.environ.get("SFPUBSUB_STATE_DIR")
    if given:
        return Path(given)
    import platformdirs  # imported here because most programs need it only to sign in

    return Path(platformdirs.user_state_path("sfpubsub", False))
