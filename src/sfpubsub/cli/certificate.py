"""Read a certificate's subject, issuer and expiry, to explain why the certificate was rejected.

The standard library decodes only a certificate that it has validated. This module reads these
fields from any certificate, without validating it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

_VERSION = 0xA0  # tag [0], omitted in version 1
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_SIXTEEN_BIT, _THIRTY_TWO_BIT = 0x1E, 0x1C  # character widths; everything else is decoded as UTF-8

# Parts of a name to show, by encoded object identifier (2.5.4.3, .10, .11).
_PARTS = {b"\x55\x04\x03": "CN", b"\x55\x04\x0a": "O", b"\x55\x04\x0b": "OU"}


class Certificate(NamedTuple):
    """Subject, issuer and expiry of a certificate.

    ``subject`` and ``issuer`` have the form ``CN=…, O=…, OU=…``, with the parts that are present.
    """

    subject: str
    issuer: str
    expires: datetime
    """Expiry time in UTC."""

    def __str__(self) -> str:
        return f"for {self.subject}, issued by {self.issuer}, valid until {self.expires:%Y-%m-%d}"


def certificate_of(der: bytes) -> Certificate:
    """Parse a DER-encoded X.509 certificate (RFC 5280, section 4.1).

    Raises:
        ValueError: *der* is not a complete certificate.
    """
    try:
        _, certificate = next(_elements(der))
        _, signed = next(_elements(certificate))
        fields = [field for field in _elements(signed) if field[0] != _VERSION]
        _serial, _algorithm, issuer, validity, subject, *_ = fields
        _, (kind, until) = _elements(validity[1])
        return Certificate(_name(subject[1]), _name(issuer[1]), _time(kind, until))
    except (StopIteration, IndexError, KeyError, ValueError) as error:
        raise ValueError("the data is not a DER-encoded certificate") from error


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and content of each top-level ASN.1 element in *der*."""
    at = 0
    while at < len(der):
        tag, length, begin = der[at], der[at + 1], at + 2
        if length & 0x80:  # the other bits give the number of length bytes
            begin += length & 0x7F
            length = int.from_bytes(der[at + 2 : begin], "big")
        at = begin + length
        if at > len(der):
            raise ValueError("the certificate is incomplete")
        yield tag, der[begin:at]


def _name(der: bytes) -> str:
    parts = []
    for _, several in _elements(der):
        for _, pair in _elements(several):
            (_, oid), (kind, value) = _elements(pair)
            if oid in _PARTS:
                encoding = {_SIXTEEN_BIT: "utf-16-be", _THIRTY_TWO_BIT: "utf-32-be"}
                text = value.decode(encoding.get(kind, "utf-8"), "replace")
                parts.append(f"{_PARTS[oid]}={text}")
    return ", ".join(parts) or "(no name)"


def _time(kind: int, value: bytes) -> datetime:
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}[kind]
    return datetime.strptime(value.decode("ascii"), form).replace(tzinfo=UTC)
