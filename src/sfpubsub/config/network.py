"""What gRPC and HTTP need alike: whom to trust, which proxy, and what counts as this machine.

The two libraries have roots and rules of their own; here both get the same.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from sfpubsub.errors import ConfigurationError

# Where systems keep the authorities that they trust, as one PEM file.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, Red Hat, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, BSD
)


# The URL of an org or a login host: a host of letters and digits or an IPv6 address, and a path
# without a query. Parsers differ about what else a URL may have in it, and each other reading could
# be another host.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]{1,5})?"
    r"(?P<path>/[0-9A-Za-z._~%/+-]*)?"
)

_ENDPOINT = re.compile(r"(?P<host>[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def trusted_roots(ca_file: str = "") -> Path:
    """Return the PEM file of the authorities to trust.

    Args:
        ca_file: The one that is set. Without it: ``SSL_CERT_FILE``, else the system's, else the one
            of certifi.

    Raises:
        ConfigurationError: *ca_file*, or that of ``SSL_CERT_FILE``, cannot be read, or has no
            certificate in it.
    """
    if ca_file:
        check_pem(ca_file)
        return Path(ca_file)
    found = ssl.get_default_verify_paths().cafile  # honours SSL_CERT_FILE
    if found and Path(found).is_file():
        check_pem(found)
        return Path(found)
    for bundle in SYSTEM_BUNDLES:
        if Path(bundle).is_file():
            return Path(bundle)
    import certifi  # comes with requests

    return Path(certifi.where())


def check_pem(ca_file: str) -> None:
    """Pass only if *ca_file* holds certificates.

    Raises:
        ConfigurationError: It does not, or cannot be read.
    """
    # Asked here, because grpc takes any bytes and then fails each handshake without a reason.
    try:
        ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"the CA file {ca_file} has no certificate in PEM form: set SFPUBSUB_CA_FILE to one "
            f"that has"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"the CA file {ca_file} cannot be read: {error}") from error


def is_loopback(host: str) -> bool:
    """Whether *host*, a name or an address, can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host, without brackets, and port of ``host:port``.

    Raises:
        ConfigurationError: It is not of that form.
    """
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not 0 < int(found["port"]) <= 65535:
        raise ConfigurationError(
            f"endpoint {endpoint!r} is not host:port, such as api.pubsub.salesforce.com:7443"
        )
    return found["host"].strip("[]"), int(found["port"])


def proxy_to(host: str, given: str = "") -> str:
    """Return the URL of the HTTP proxy that TLS to *host* goes through; empty if it goes straight.

    One rule for gRPC and HTTP, whose libraries differ about which variables there are, about their
    capitals and about what excepts a host.

    Args:
        host: A name or an address.
        given: The proxy that is set; without it ``https_proxy`` holds. ``no_proxy`` excepts hosts
            from both.

    Raises:
        ConfigurationError: The proxy is not valid.
    """
    # Here: not every user of the settings needs it, and it takes its time.
    from urllib.request import getproxies, proxy_bypass

    host = host.strip("[]")
    proxy, what = (given, "SFPUBSUB_PROXY") if given else (getproxies().get("https"), "https_proxy")
    if not proxy or proxy_bypass(host) or _is_in(host, getproxies().get("no", "")):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        check_proxy(proxy, what)
    except ConfigurationError as error:
        failure = error.with_traceback(None)
    else:
        return proxy
    del proxy, given  # error reporters show variables, and there may be a password in these
    raise failure


def proxies_for(url: str, given: str = "") -> dict[str, str]:
    """Return the proxy of an HTTP request as the library takes it; empty if it goes straight.

    Raises:
        ConfigurationError: The proxy is not valid.
    """
    # Plaintext is for loopback, and a proxy may be anywhere.
    if not url.startswith("https:"):
        return {}
    proxy = proxy_to(urlsplit(url).hostname or "", given)
    return {"https": proxy} if proxy else {}


def _is_in(host: str, networks: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for network in networks.split(","):
        with suppress(ValueError):  # a name
            if address in ipaddress.ip_network(network.strip(), strict=False):
                return True
    return False


def check_url(url: str, what: str, *, insecure: str = "", path: bool = False) -> str:
    """Return *url* without a slash at its end, if a secret may be sent there.

    Args:
        url: Scheme and host, perhaps a port.
        what: For the message, such as ``SFPUBSUB_LOGIN_URL``.
        insecure: ``force`` lets plaintext pass to anywhere, not only to loopback.
        path: Whether a path is allowed.

    Raises:
        ConfigurationError: It is not such a URL, or is plaintext to a host that is not loopback.
    """
    if "@" in url:
        raise ConfigurationError(f"{what} must not carry a user name or a password")
    found = _URL.fullmatch(url)
    # Not shown: what is no URL may be anything, a secret in the wrong place included.
    if found is None or int((found["port"] or ":0")[1:]) > 65535:
        raise ConfigurationError(f"{what} is not a URL such as https://example.my.salesforce.com")
    host = found["host"]
    if not path and (found["path"] or "").strip("/"):
        raise ConfigurationError(
            f"{what} has more than scheme and host: {found['scheme']}://{host}"
        )
    if found["scheme"] == "http" and insecure != "force" and not is_loopback(host):
        raise ConfigurationError(
            f"{what} is plaintext to {host}, which would show a secret to the network: use https "
            f"(SFPUBSUB_INSECURE=force insists)"
        )
    return url.rstrip("/")


def check_proxy(proxy: str, what: str) -> None:
    """Pass only if *proxy* is the URL of an HTTP proxy.

    Raises:
        ConfigurationError: It is not; the message does not show it, as it may hold a password.
    """
    try:
        parts = urlsplit(proxy)
        complete = parts.scheme == "http" and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise ConfigurationError(f"{what} is not http://host:port of an HTTP proxy")


def without_password(proxy: str) -> str:
    """Return a proxy's URL as it may be shown."""
    parts = urlsplit(proxy)
    if "@" not in parts.netloc:
        return proxy
    return parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]).geturl()
