"""The SOAP login call of old clients: a username and a password in XML, a session in XML.

Reads those two elements of the request and nothing else of it; entities other than XML's own five
and numbers, CDATA and other calls are not understood.
"""

from __future__ import annotations

import re
from html import unescape
from http import HTTPStatus
from xml.sax.saxutils import escape

from sfpubsub.emulator.http.exchange import Answer, Call
from sfpubsub.emulator.org.signin import SignInRefused

_NEWEST_VERSION = 64
"""API version after which the call was taken away."""

_OLDEST_VERSION = 31

_ENVELOPE = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    '<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"'
    ' xmlns="urn:partner.soap.sforce.com" xmlns:sf="urn:fault.partner.soap.sforce.com"'
    ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">'
    "<soapenv:Body>{}</soapenv:Body></soapenv:Envelope>"
)
_SESSION_S = 7200
"""What is said of a session's life, whatever the settings say: clients only show it."""

_PROFILE_ID = "00eSB0000000001YAA"


def login(call: Call) -> Answer:
    """POST /services/Soap/u/<version>."""
    if "SOAPAction" not in call.headers:
        return _fault("soapenv:Client", "SOAPAction HTTP header missing")
    if not _OLDEST_VERSION <= int(call.parts["version"]) <= _NEWEST_VERSION:
        return _login_fault(
            "UNSUPPORTED_API_VERSION", f"login is served in versions up to {_NEWEST_VERSION}.0"
        )
    text = call.body.decode("utf-8", "replace")
    username, password = _element(text, "username"), _element(text, "password")
    if not re.search(r"<(?:\w+:)?login\b", text) or username is None or password is None:
        return _fault("soapenv:Client", "only login with username and password is served")
    try:
        user, token = call.world.sign_in.login(username, password)
    except SignInRefused:
        return _login_fault(
            "INVALID_LOGIN", "Invalid username, password, security token; or user locked out."
        )
    sessions = call.world.sessions
    server = f"{call.url}/services/Soap/u/{call.parts['version']}.0/{sessions.org_id[:15]}"
    info = {
        "accessibilityMode": "false",
        "currencySymbol": "$",
        "organizationId": sessions.org_id,
        "organizationName": "sfpubsub emulator",
        "profileId": _PROFILE_ID,
        "roleId": "",
        "sessionSecondsValid": str(_SESSION_S),
        "userEmail": user.username,
        "userFullName": user.username,
        "userId": user.user_id,
        "userLanguage": "en_US",
        "userName": user.username,
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


def problem(status: HTTPStatus, text: str) -> Answer:
    """An error that has nothing to do with credentials, in this area's shape."""
    return _fault("soapenv:Client", text, status=status)


def _login_fault(code: str, text: str) -> Answer:
    detail = (
        f'<detail><sf:LoginFault xsi:type="sf:LoginFault"><sf:exceptionCode>{code}'
        f"</sf:exceptionCode><sf:exceptionMessage>{escape(text)}</sf:exceptionMessage>"
        "</sf:LoginFault></detail>"
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


def _xml(values: dict[str, str]) -> str:
    return "".join(f"<{name}>{escape(value)}</{name}>" for name, value in values.items())


def _element(text: str, name: str) -> str | None:
    found = re.search(rf"<(?:\w+:)?{name}(?:\s[^>]*)?>([^<]*)</", text)
    return None if found is None else unescape(found[1])
