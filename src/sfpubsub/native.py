"""Load the optional compiled package ``sfpubsub-native``, which is built from ``native/``.

Its results equal those of the Python code. If it does not support a schema, a payload or a message,
the Python code is used. To disable it, set ``SFPUBSUB_NATIVE=0`` in the environment before the
first import. Thread-safe.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

# The version that this code requires; a test compares it with native/Cargo.toml.
VERSION = "0.2.0"

_log = logging.getLogger("sfpubsub.client")


def _load() -> Any:
    if os.environ.get("SFPUBSUB_NATIVE") == "0":
        return None
    try:
        module = importlib.import_module("sfpubsub_native")
    except ImportError:
        return None
    if module.__version__ != VERSION:
        _log.warning(
            "sfpubsub-native %s is installed but not used: install version %s, which this version "
            "of sfpubsub needs",
            module.__version__,
            VERSION,
        )
        return None
    return module


compiled: Any = _load()
"""The module ``sfpubsub_native``, or None."""


def is_installed() -> bool:
    """Return whether the compiled package is installed in the right version and not disabled."""
    return compiled is not None
