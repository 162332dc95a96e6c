"""The JSON form of a decoded payload.

Integers keep all 64 bits, bytes become base64, and numbers that JSON has no word for become the
strings ``NaN``, ``Infinity`` and ``-Infinity``: the mapping that protocol buffers use.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

_SEPARATORS = (",", ":")


def to_json(value: Any) -> str:
    """Return *value* as one line of JSON text.

    Args:
        value: What `Codec.decode` returned, or a structure with such values in it.
    """
    try:
        return json.dumps(
            value, separators=_SEPARATORS, ensure_ascii=False, allow_nan=False, default=_bytes
        )
    except ValueError:
        # A NaN or an infinity somewhere: rare, so only then is the value walked in Python.
        return json.dumps(_finite(value), separators=_SEPARATORS, ensure_ascii=False)


def _bytes(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"no JSON form for {type(value).__name__}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return _bytes(value) if isinstance(value, bytes) else value
