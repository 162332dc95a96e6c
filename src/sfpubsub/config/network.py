"""Network rules shared by gRPC and HTTP: trusted certificates, the proxy, and loopback.

The libraries for gRPC and HTTP have different defaults. Because both use this module, they follow
the same rules.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from sfpubsub.errors import ConfigurationError

# Where operating systems keep their trusted certificate authorities, as one PEM file.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, Red Hat, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, BSD
)


# The URL of an org or a login host: a host of letters and digits or an IPv6 address, and a path
# without a query. Parsers disagree about anything else in a URL, and a different reading could mean
# a different host.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]{1,5})?"
    r"(?P<path>/[0-9A-Za-z._~%/+-]*)?"
)

_ENDPOINT = re.compile(r"(?P<host>[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def trusted_roots(ca_file: str = "") -> Path:
    """Return the PEM file of the certificate authorities to trust.

    Args:
        ca_file: The configured file. If empty, the file that ``SSL_CERT_FILE`` names is used if it
            exists, otherwise the system's, otherwise certifi's.

    Raises:
        ConfigurationError: *ca_file* or ``SSL_CERT_FILE`` cannot be read, or contains no
            certificate.
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
    """Check that *ca_file* contains certificates.

    Raises:
        ConfigurationError: The file contains no PEM certificate, or cannot be read.
    """
    # Checked here, because grpc accepts any bytes and then fails each handshake without saying why.
    try:
        ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"the CA file {ca_file} contains no PEM certificate: set SFPUBSUB_CA_FILE to a file "
            "with PEM certificates"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"the CA file {ca_file} cannot be read: {error}") from error


def is_loopback(host: str) -> bool:
    """Return whether *host*, a name or an IP address, always refers to this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Split ``host:port`` into the host, without brackets, and the port.

    Raises:
        ConfigurationError: *endpoint* does not have the form ``host:port``.
    """
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not 0 < int(found["port"]) <= 65535:
        raise ConfigurationError(
            f"endpoint {endpoint!r} is not valid: use host:port, such as "
            "api.pubsub.salesforce.com:7443"
        )
    return found["host"].strip("[]"), int(found["port"])


def proxy_to(host: str, given: str = "") -> str:
    """Return the URL of the HTTP proxy for TLS connections to *host*.

    This function is used for both gRPC and HTTP, because their libraries disagree about the names
    and case of the environment variables, and about how to exclude hosts.

    Args:
        host: A name or an address.
        given: The configured proxy; if empty, ``https_proxy`` applies. In both cases, the hosts in
            ``no_proxy`` are reached directly, and loopback always is.

    Returns:
        The URL, or an empty string for a direct connection.

    Raises:
        ConfigurationError: The proxy is not valid.
    """
    # Imported here: it is slow, and not every user of the settings needs it.
    from urllib.request import getproxies, proxy_bypass

    host = host.strip("[]")
    proxy, what = (given, "SFPUBSUB_PROXY") if given else (getproxies().get("https"), "https_proxy")
    if (
        not proxy
        or is_loopback(host)
        or proxy_bypass(host)
        or _is_in(host, getproxies().get("no", ""))
    ):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        check_proxy(proxy, what)
    except ConfigurationError as error:
        failure = error.with_traceback(None)
    else:
        return proxy
    del proxy, given  # error reporters show variables, and these may contain a password
    raise failure


def proxies_for(url: str, given: str = "") -> dict[str, str]:
    """Return the ``proxies`` argument for ``requests``; empty for a direct connection.

    Raises:
        ConfigurationError: The proxy is not valid.
    """
    # Plaintext is allowed on loopback only, and a proxy may be anywhere.
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
        with suppress(ValueError):  # a host name, not a network
            if address in ipaddress.ip_network(network.strip(), strict=False):
                return True
    return False


def check_url(url: str, what: str, *, insecure: str = "", path: bool = False) -> str:
    """Check that a secret may be sent to *url*; return it without a trailing slash.

    Args:
        url: Scheme, host and optionally a port.
        what: Name of the URL in messages, such as ``SFPUBSUB_LOGIN_URL``.
        insecure: ``force`` allows plaintext to any host, not only to loopback.
        path: Whether a path is allowed.

    Raises:
        ConfigurationError: The URL is not valid, or is plaintext to a host other than loopback.
    """
    if "@" in url:
        raise ConfigurationError(f"{what} must not contain a username or a password")
    found = _URL.fullmatch(url)
    # The value is not shown: it may be anything, even a misplaced secret.
    if found is None or int((found["port"] or ":0")[1:]) > 65535:
        raise ConfigurationError(
            f"{what} is not a valid URL: use a URL such as https://example.my.salesforce.com"
        )
    host = found["host"]
    if not path and (found["path"] or "").strip("/"):
        raise ConfigurationError(
            f"{what} must contain only a scheme and a host, such as {found['scheme']}://{host}"
        )
    if found["scheme"] == "http" and insecure != "force" and not is_loopback(host):
        raise ConfigurationError(
            f"{what} uses plaintext to {host}, which would expose a secret on the network: use "
            f"https (SFPUBSUB_INSECURE=force overrides this)"
        )
    return url.rstrip("/")


def check_proxy(proxy: str, what: str) -> None:
    """Check that *proxy* is the URL of an HTTP proxy.

    Raises:
        ConfigurationError: *proxy* is not such a URL. The message does not contain it, because it
            may contain a password.
    """
    try:
        parts = urlsplit(proxy)
        complete = parts.scheme == "http" and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise ConfigurationError(f"{what} is not the URL of an HTTP proxy: use http://host:port")


def without_password(proxy: str) -> str:
    """Return a proxy's URL with its credentials masked."""
    parts = urlsplit(proxy)
    if "@" not in parts.netloc:
        return proxy
    return parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]).geturl()
