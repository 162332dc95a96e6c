"""Converts positions of the bus to the opaque bytes that clients see, and back.

Positions increase, but their bytes must not, so that a client that compares, sorts or counts ids
fails its tests. Invariant: a bijection, so that equal ids mean equal positions; and the first eight
bytes are a number below 2**53, so clients that read ids as JavaScript numbers still work.
"""

from __future__ import annotations

import hashlib

_DOMAIN = 1 << 53
"""Positions and scrambled numbers are below this."""

_FACTOR = 0x13C6EF372FE951
"""Odd, hence invertible modulo 2**53; close to 2**53 times the golden ratio's fraction, so four
consecutive ids are never in order.
"""

_INVERSE = pow(_FACTOR, -1, _DOMAIN)

_SHIFT = 0x0F1E2D3C4B5A69
"""Added after the multiplication, so that the id of position 0 is not all zeros."""

_NUMBER_BYTES = 8


class ReplayIds:
    """Encodes and decodes replay ids of one length.

    Args:
        length: 8, 10 (eight bytes of number, two zero bytes), 12 or 24 (number and a digest with
            0x00 and 0xff in it).

    Immutable, thread-safe.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        size = length - _NUMBER_BYTES
        # The end of every id: the two zero bytes of the usual format, or None for a digest.
        self._end = bytes(size) if size <= 2 else None

    def mint(self, position: int) -> bytes:
        """Return the id of a position."""
        number = (position * _FACTOR + _SHIFT) % _DOMAIN
        end = self._digest(position) if self._end is None else self._end
        return number.to_bytes(_NUMBER_BYTES, "big") + end

    def read(self, replay_id: bytes) -> int | None:
        """Return the position of an id, or None if the bytes are not a valid id.

        As on the service, the bare eight bytes are accepted for the ten-byte form. This does not
        check that the position exists: most random bytes of the right length decode to a position
        far beyond the end of the bus.
        """
        number = int.from_bytes(replay_id[:_NUMBER_BYTES], "big")
        if number >= _DOMAIN:
            return None
        position = (number - _SHIFT) * _INVERSE % _DOMAIN
        if replay_id == self.mint(position):
            return position
        bare = self._length in (8, 10) and len(replay_id) == _NUMBER_BYTES
        return position if bare else None

    def _digest(self, position: int) -> bytes:
        size = self._length - _NUMBER_BYTES - 2
        digest = hashlib.blake2b(position.to_bytes(_NUMBER_BYTES, "big"), digest_size=size)
        return b"\xff\x00" + digest.digest()
