"""The SOAP calls for old clients: login, which creates a session from a username and a password,
and logout, which ends a session.

Requests are read with an XML parser, so CDATA, character references and all encodings that the
parser supports are accepted. A document type declaration is refused, which rules out entities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from xml.parsers import expat
from xml.sax.saxutils import escape

from sfpubsub.emulator.http.exchange import Answer, Call
from sfpubsub.emulator.org.signin import SignInRefused

_NEWEST_VERSION = 64
"""The last API version that has login."""

_OLDEST_VERSION = 31

_ENVELOPE = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    '<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"'
    ' xmlns="urn:partner.soap.sforce.com" xmlns:sf="urn:fault.partner.soap.sforce.com"'
    ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">'
    "<soapenv:Body>{}</soapenv:Body></soapenv:Envelope>"
)
_SESSION_S = 7200
"""Lifetime of a session in seconds, as reported to clients, which only display it."""

_PROFILE_ID = "00eSB0000000001YAA"

_PARTNER = "urn:partner.soap.sforce.com"
_SOAP = "http://schemas.xmlsoap.org/soap/envelope/"

_DEEPEST = 32
"""Maximum nesting depth; a call has five levels."""


@dataclass
class _Element:
    """An XML element. Its name has the form "namespace name"."""

    name: str
    text: str = ""
    children: list[_Element] = field(default_factory=list)

    def child(self, *names: str) -> _Element | None:
        """Return the descendant reached by following a path of element names, or None if it does
        not exist.
        """
        found: _Element | None = self
        for name in names:
            if found is None:
                return None
            found = next((item for item in found.children if item.name == name), None)
        return found

    def value(self, *names: str) -> str | None:
        """Return the text of the descendant reached by following a path of element names in the
        namespace of the partner API, or None if it does not exist.
        """
        found = self.child(*(f"{_PARTNER} {name}" for name in names))
        return None if found is None else found.text


class _Unreadable(Exception):  # noqa: N818 - an answer, not a bug
    """Raised if the body of a request cannot be read as XML; the message gives the reason."""


def call(call: Call) -> Answer:
    """POST /services/Soap/u/<version>: handle a login or logout call."""
    if "SOAPAction" not in call.headers:
        return _fault("soapenv:Client", "SOAPAction HTTP header missing")
    try:
        envelope = _parsed(call.body)
    except _Unreadable as error:
        return _fault("soapenv:Client", str(error))
    body = envelope.child(f"{_SOAP} Body")
    if envelope.name != f"{_SOAP} Envelope" or body is None or not body.children:
        return _fault("soapenv:Client", "the request must be a SOAP envelope that contains a call")
    asked = body.children[0]
    if asked.name == f"{_PARTNER} login":
        return _login(call, asked)
    if asked.name == f"{_PARTNER} logout":
        return _logout(call, envelope)
    namespace, _, name = asked.name.rpartition(" ")
    return _fault(
        "soapenv:Client",
        f"No operation available for request {{{namespace}}}{name}: only login and logout of"
        f" {{{_PARTNER}}} are served",
    )


def _login(call: Call, asked: _Element) -> Answer:
    if not _OLDEST_VERSION <= int(call.parts["version"]) <= _NEWEST_VERSION:
        return _coded_fault(
            "UNSUPPORTED_API_VERSION", f"login is served in versions up to {_NEWEST_VERSION}.0"
        )
    username, password = asked.value("username"), asked.value("password")
    if username is None or password is None:
        return _fault("soapenv:Client", "login needs username and password")
    try:
        user, token = call.world.sign_in.login(username, password, call.client)
    except SignInRefused:
        return _coded_fault(
            "INVALID_LOGIN", "Invalid username, password, security token; or user locked out."
        )
    sessions = call.world.sessions
    server = f"{call.url}/services/Soap/u/{call.parts['version']}.0/{sessions.org_id[:15]}"
    # In the service's order: some clients access children by index. None is a nil element.
    info = {
        "accessibilityMode": "false",
        "chatterExternal": "false",
        "currencySymbol": "$",
        "orgAttachmentFileSizeLimit": "5242880",
        "orgDefaultCurrencyIsoCode": "USD",
        "orgDefaultCurrencyLocale": "en_US",
        "orgDisallowHtmlAttachments": "false",
        "orgHasPersonAccounts": "false",
        "organizationId": sessions.org_id,
        "organizationMultiCurrency": "false",
        "organizationName": "sfpubsub emulator",
        "profileId": _PROFILE_ID,
        "roleId": None,
        "sessionSecondsValid": str(_SESSION_S),
        "userDefaultCurrencyIsoCode": None,
        "userEmail": user.username,
        "userFullName": user.username,
        "userId": user.user_id,
        "userLanguage": "en_US",
        "userLocale": "en_US",
        "userName": user.username,
        "userTimeZone": "America/Los_Angeles",
        "userType": "Standard",
        "userUiSkin": "Theme3",
    }
    result = {
        "metadataServerUrl": server.replace("/Soap/u/", "/Soap/m/"),
        "passwordExpired": "false",
        "sandbox": "true",
        "serverUrl": server,
        "sessionId": token,
        "userId": user.user_id,
    }
    return _answer(
        HTTPStatus.OK,
        f"<loginResponse><result>{_xml(result)}<userInfo>{_xml(info)}</userInfo></result>"
        "</loginResponse>",
    )


def _logout(call: Call, envelope: _Element) -> Answer:
    header = envelope.child(f"{_SOAP} Header")
    token = header.value("SessionHeader", "sessionId") if header else None
    if not call.world.sessions.revoke(token or ""):
        return _coded_fault("INVALID_SESSION_ID", "Invalid Session ID found in SessionHeader")
    return _answer(HTTPStatus.OK, "<logoutResponse/>")


def problem(status: HTTPStatus, text: str) -> Answer:
    """Return an error unrelated to credentials, as a SOAP fault."""
    return _fault("soapenv:Client", text, status=status)


def _coded_fault(code: str, text: str) -> Answer:
    kind = "UnexpectedErrorFault" if code == "INVALID_SESSION_ID" else "LoginFault"
    detail = (
        f'<detail><sf:{kind} xsi:type="sf:{kind}"><sf:exceptionCode>{code}'
        f"</sf:exceptionCode><sf:exceptionMessage>{escape(text)}</sf:exceptionMessage>"
        f"</sf:{kind}></detail>"
    )
    return _fault(f"sf:{code}", f"{code}: {text}", detail)


def _fault(
    code: str,
    text: str,
    detail: str = "",
    status: HTTPStatus = HTTPStatus.INTERNAL_SERVER_ERROR,
) -> Answer:
    return _answer(
        status,
        f"<soapenv:Fault><faultcode>{code}</faultcode><faultstring>{escape(text)}</faultstring>"
        f"{detail}</soapenv:Fault>",
    )


def _answer(status: HTTPStatus, body: str) -> Answer:
    return Answer(status, "text/xml; charset=utf-8", _ENVELOPE.format(body))


def _xml(values: Mapping[str, str | None]) -> str:
    return "".join(
        f'<{name} xsi:nil="true"/>' if value is None else f"<{name}>{escape(value)}</{name}>"
        for name, value in values.items()
    )


def _parsed(body: bytes) -> _Element:
    """Parse an XML document, and return its root element.

    Raises:
        _Unreadable: The body is not XML, is nested too deeply, or has a document type declaration.
    """
    top = _Element("")
    path = [top]
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True

    def begin(name: str, _attributes: dict[str, str]) -> None:
        if len(path) > _DEEPEST:
            raise _Unreadable(f"the XML is nested more than {_DEEPEST} elements deep")
        element = _Element(name)
        path[-1].children.append(element)
        path.append(element)

    def text(data: str) -> None:
        path[-1].text += data

    def refuse(*_declaration: object) -> None:
        # Entity expansion attacks need a document type, and SOAP does not allow one.
        raise _Unreadable("the XML has a document type declaration, which SOAP does not allow")

    parser.StartElementHandler = begin
    parser.EndElementHandler = lambda _name: path.pop()
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(body, True)
    # ValueError and LookupError: the encoding is wrong or unknown.
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise _Unreadable(f"the XML cannot be read: {error}") from error
    return top.children[0]
