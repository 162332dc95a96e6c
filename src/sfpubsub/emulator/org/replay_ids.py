"""Turns positions of the bus into the opaque bytes that clients see, and back.

A position is an int that counts up; its bytes must not, so that a client that compares, sorts or
counts with ids fails its tests. Invariant: a bijection, so that equal ids mean equal positions;
and the first eight bytes are a number below 2**53, which clients that read ids as a JavaScript
number survive.
"""

from __future__ import annotations

import hashlib

_DOMAIN = 1 << 53
"""Positions and scrambled numbers are below this."""

_FACTOR = 0x13C6EF372FE951
"""Odd, hence invertible modulo 2**53; close to 2**53 times the golden ratio's fraction, hence four
neighbours are never in order."""

_INVERSE = pow(_FACTOR, -1, _DOMAIN)

_SHIFT = 0x0F1E2D3C4B5A69
"""Added after the multiplication, so that position 0 is not the id of zeros."""

_NUMBER_BYTES = 8


class ReplayIds:
    """Mints and reads replay ids of one length.

    Args:
        length: 8, 10 (eight bytes of number, two zero bytes), 12 or 24 (number and a digest with
            0x00 and 0xff in it).

    Immutable, thread-safe.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        size = length - _NUMBER_BYTES
        # What every id ends with: the two zero bytes of the usual form. None for a digest.
        self._end = bytes(size) if size <= 2 else None

    def mint(self, position: int) -> bytes:
        """The id of a position."""
        number = (position * _FACTOR + _SHIFT) % _DOMAIN
        end = self._digest(position) if self._end is None else self._end
        return number.to_bytes(_NUMBER_BYTES, "big") + end

    def read(self, replay_id: bytes) -> int | None:
        """The position of an id; None for bytes that can be no id.

        As on the service, the bare eight bytes are accepted for the ten-byte form. Whether the
        position exists is the bus's to say: most garbage of the right length reads as a position
        far beyond its end.
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
