"""Convert positions of the bus to the opaque bytes that clients see, and back.

Positions increase, but the bytes of consecutive ids are not in order, so that a client that
compares ids, sorts them or does arithmetic on them fails its tests. Invariants: different positions
have different ids; the first eight bytes are a number below 2**53, so clients that read ids as
JavaScript numbers work.
"""

from __future__ import annotations

import hashlib

_DOMAIN = 1 << 53
"""Exclusive upper bound of positions, and of the numbers in replay ids."""

_FACTOR = 0x13C6EF372FE951
"""Multiplier that scrambles positions. It is odd, hence invertible modulo 2**53, and close to 2**53
times the fractional part of the golden ratio, so four consecutive ids are never in order.
"""

_INVERSE = pow(_FACTOR, -1, _DOMAIN)

_SHIFT = 0x0F1E2D3C4B5A69
"""Added after the multiplication, so that the id of position 0 is not all zeros."""

_NUMBER_BYTES = 8


class ReplayIds:
    """Encodes and decodes replay ids of one length. Immutable, thread-safe.

    Args:
        length: Length of the ids in bytes. With 8, an id is a number; with 10, a number and two
            zero bytes; with 12 or 24, a number, the bytes 0xff and 0x00, and a digest.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        size = length - _NUMBER_BYTES
        # What follows the number in every id: nothing or two zero bytes. None if it is a digest,
        # which differs from id to id.
        self._end = bytes(size) if size <= 2 else None

    def mint(self, position: int) -> bytes:
        """Return the replay id of a position."""
        number = (position * _FACTOR + _SHIFT) % _DOMAIN
        end = self._digest(position) if self._end is None else self._end
        return number.to_bytes(_NUMBER_BYTES, "big") + end

    def read(self, replay_id: bytes) -> int | None:
        """Return the position of a replay id, or None if the bytes are not a valid id.

        As on the service, the first eight bytes of an id of ten bytes are also accepted. This
        method does not check that the position exists: most random bytes that are accepted decode
        to a position far beyond the newest one.
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
