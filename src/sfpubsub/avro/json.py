"""Encode decoded payloads as JSON.

Integers keep all their digits, bytes become base64, and numbers that JSON cannot express become the
strings ``NaN``, ``Infinity`` and ``-Infinity``, as in the JSON mapping of protocol buffers.
`datetime` values become ISO 8601 strings; the dates, decimals and UUIDs of logical types become
strings as well. Keys that are not strings become strings that contain their JSON form.

If orjson is installed, it does the encoding, several times faster. The result is equivalent: only
the notation of large and small floats may differ (``1e16`` and ``1e+16``).
"""

from __future__ import annotations

import base64
import datetime
import decimal
import importlib
import json
import math
import uuid
from typing import Any

_SEPARATORS = (",", ":")

try:
    _orjson: Any = importlib.import_module("orjson")
except ImportError:
    _orjson = None

# Subclasses of dict and similar types are passed to `_text`, which rejects them; then json encodes
# the value, and handles NaN in it. Other types that orjson could encode are passed to `_text` as
# well.
_ORJSON_OPTIONS = (
    0
    if _orjson is None
    else _orjson.OPT_PASSTHROUGH_SUBCLASS
    | _orjson.OPT_PASSTHROUGH_DATETIME
    | _orjson.OPT_PASSTHROUGH_DATACLASS
)


def to_json(value: Any, *, is_finite: bool = False) -> str:
    """Return *value* as one line of JSON text.

    Args:
        value: A result of `Codec.decode`, or a structure that contains such results.
        is_finite: Whether the value is known to contain no NaN and no infinity.

    Raises:
        TypeError: The value contains something that cannot be encoded as JSON.
    """
    # orjson would encode NaN and the infinities as null.
    if _orjson is not None and (is_finite or not _has_odd_float(value)):
        try:
            text: str = _orjson.dumps(value, _text, _ORJSON_OPTIONS).decode()
        except TypeError:  # an integer beyond 64 bits, a key that is not a string, a lone surrogate
            pass
        else:
            return text
    try:
        text = json.dumps(
            value, separators=_SEPARATORS, ensure_ascii=False, allow_nan=False, default=_text
        )
        if not text.isascii():
            text.encode()
    except (ValueError, TypeError):
        # Rare, so the value is processed in Python only in this case. The output is escaped,
        # because a lone surrogate (which Avro cannot contain, but a user's value can) has no UTF-8
        # form.
        return json.dumps(_plain(value), separators=_SEPARATORS)
    return text


def _has_odd_float(value: Any) -> bool:
    if type(value) not in _NESTED:
        value = (value,)
    for item in value.values() if type(value) is dict else value:
        kind = type(item)
        if kind is float:
            if item - item:  # NaN for NaN and the infinities, 0 for all other numbers
                return True
        elif kind in _NESTED and item and _has_odd_float(item):
            return True
    return False


_NESTED = {dict, list, tuple}


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be encoded as JSON")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return _text(value)


def _key(key: Any) -> str:
    plain = _plain(key)
    if isinstance(plain, (dict, list)):
        raise TypeError(f"a key of type {type(key).__name__} cannot be encoded as JSON")
    return plain if isinstance(plain, str) else json.dumps(plain)
