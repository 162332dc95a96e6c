"""``sfpubsub doctor``: check each requirement of a subscription, one by one.

The command changes nothing and opens no stream. All output passes through `_Report.add` or
`Settings.describe`, which mask secrets. Each step has a timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import click

from sfpubsub.auth.http import Bearer, HttpClient
from sfpubsub.auth.oauth import session_provider
from sfpubsub.auth.organisation import identity_of
from sfpubsub.auth.refresh import RefreshToken
from sfpubsub.auth.session import CurrentSession, Session, SessionProvider
from sfpubsub.cli import probes, sign_in_checks
from sfpubsub.cli.holes import holes
from sfpubsub.cli.main import NOT_ALLOWED
from sfpubsub.cli.params import ManagedName, Topic
from sfpubsub.cli.probes import NetworkRoute, ProbeError
from sfpubsub.cli.render import json_line
from sfpubsub.cli.service import client_of, service_options
from sfpubsub.cli.spark_checks import spark_findings
from sfpubsub.cli.spark_options import require_spark
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import RestTimings, Settings
from sfpubsub.config.settings import SECRETS
from sfpubsub.errors import PermissionDeniedError, SchemaNotFoundError, SfPubSubError
from sfpubsub.rest import OrgReader
from sfpubsub.spark.ingest.members import ALL_CHANGES, ChannelMembers
from sfpubsub.spark.mirror.rights import check_object, present_grant
from sfpubsub.tooling import Tooling

Result = Literal["ok", "warning", "failed", "skipped"]

# The service's own ports (Salesforce documentation, Pub/Sub endpoints).
_PORTS = (443, 7443)
_SERVICE = ".pubsub.salesforce.com"

# Seconds to reach the service: enough for several gRPC connection attempts.
_CONNECT = 10.0

# A schema id that does not exist. A "not found" response shows that the session was accepted.
_NO_SCHEMA = "A" * 22

# A mirror retries, but a check needs only one attempt.
_ONE_TRY = RestTimings(request=10.0, attempts=1)

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "yellow"}


@click.command()
@click.option(
    "--topic",
    type=Topic(),
    metavar="TOPIC",
    help="Also check whether you can subscribe to this topic.",
)
@click.option(
    "--managed",
    type=ManagedName(),
    metavar="NAME_OR_ID",
    help="Also check the state of this managed subscription.",
)
@click.option(
    "--object",
    "objects",
    metavar="NAME",
    multiple=True,
    help="Also check whether this object can be mirrored; can be repeated.",
)
@click.option(
    "--spark",
    "with_spark",
    is_flag=True,
    help="Check only Spark: its version, the table formats and file systems, and what will not "
    "work here.",
)
@click.option(
    "--master",
    metavar="URL",
    help="With --spark: Spark's master, or a Spark Connect server (sc://…).  [default: "
    "$SPARK_REMOTE, or local[2]]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON line for each setting and check."
)
@service_options
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    topic: str | None,
    managed: str | None,
    objects: tuple[str, ...],
    with_spark: bool,
    master: str | None,
    as_json: bool,
    **service: str | None,
) -> None:
    """Check everything that a subscription needs, and suggest a fix for each failure.

    The command warns of installed libraries with known security holes, and shows the settings and
    their sources, without secrets. Then it checks name resolution, ports, TLS, sign-in,
    organisation and the Pub/Sub API. The exit code is 3 if a check failed.
    """
    report = _Report(as_json)
    if with_spark:
        _check_spark(report, master)
        if report.failed:
            ctx.exit(NOT_ALLOWED)
        return
    settings = None
    with report.trying(
        "settings", "correct the setting; see `sfpubsub --help` and the documentation"
    ):
        settings = Settings.load(service)
        report.settings(settings)
        report.add("settings", "ok", "all settings are valid")
    _check_libraries(report)
    if settings is None:
        report.skip(["network", "sign-in", "Pub/Sub API"], "the settings are not valid")
    else:
        reached = _check_network(report, settings)
        sessions = _check_session(report, settings)
        unchecked = ["Pub/Sub API", *(["topic"] if topic is not None else [])]
        if sessions is None:
            report.skip(unchecked, "there is no session")
        elif not reached:
            report.skip(unchecked, "the service cannot be reached with these settings")
        else:
            _check_service(report, settings, sessions, topic)
        if managed is not None and sessions is not None:
            _check_managed(report, settings, sessions, managed)
        elif managed is not None:
            report.skip(["managed subscription"], "there is no session")
        for name in objects:
            if sessions is None:
                report.skip([f"object {name}"], "there is no session")
            else:
                _check_object(report, settings, sessions, name)
    if report.failed:
        ctx.exit(NOT_ALLOWED)


class _Report:
    """Prints the result of each check immediately, with secrets masked."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._secrets: list[str] = []
        self.failed = False

    def hide(self, *secrets: str) -> None:
        """Mask *secrets* in all later output."""
        self._secrets += secrets

    def settings(self, settings: Settings) -> None:
        """Print each setting and its source. The text form omits settings that are not set."""
        self.hide(*(getattr(settings, name) for name in SECRETS))
        for name, value, source in settings.describe():
            if self._as_json:
                line = json_line({"setting": name, "value": value, "source": source})
                click.echo(line, nl=False)
            elif value:
                click.echo(f"{name:<18} {value}  ({source})")
        if not self._as_json:
            click.echo()

    def add(self, name: str, result: Result, detail: str, cure: str = "") -> None:
        """Print the result of a check, and the suggested fix *cure* unless it is empty."""
        detail, cure = (self._hiding(text) for text in (detail, cure))
        self.failed = self.failed or result == "failed"
        if self._as_json:
            values = {"check": name, "result": result, "detail": detail, "cure": cure}
            click.echo(json_line(values), nl=False)
            return
        word = click.style(f"{result:<8}", fg=_COLOURS[result])
        click.echo(f"{word}{name}: {detail}")
        if cure:
            click.echo(f"{'':8}-> {cure}")

    def _hiding(self, text: str) -> str:
        for secret in filter(None, self._secrets):
            text = text.replace(secret, "***")
        return " ".join(text.split())

    def skip(self, names: list[str], why: str) -> None:
        """Report each check in *names* as skipped, with the reason *why*."""
        for name in names:
            self.add(name, "skipped", why)

    @contextmanager
    def trying(self, name: str, cure: str = "") -> Iterator[None]:
        """Report an error raised in the block as a failure of the check *name*.

        The block itself must report success. *cure* is the suggested fix for an error that does not
        provide one.
        """
        try:
            yield
        except ProbeError as error:
            self.add(name, "failed", str(error), error.cure)
        except (SfPubSubError, OSError) as error:
            self.add(name, "failed", str(error), cure)


# Checks without a session.


def _check_libraries(report: _Report) -> None:
    found = list(holes())
    for hole, installed in found:
        report.add(
            "libraries",
            "warning",
            f"{hole.package} {installed} has {hole.advisory}: {hole.about}",
            f"pip install '{hole.package}>={hole.safe}'",
        )
    if not found:
        report.add("libraries", "ok", "no installed library has a security hole on our list")


def _check_spark(report: _Report, master: str | None) -> None:
    require_spark("doctor --spark")
    with report.trying("spark", "see the page Platforms of the documentation"):
        for name, result, detail in spark_findings(master):
            report.add(name, result, detail)


def _check_network(report: _Report, settings: Settings) -> bool:
    """Check the endpoint, name resolution, port and TLS.

    Returns:
        True if the configured port can be reached and the TLS handshake, if required, succeeds.
    """
    way = None
    with report.trying("endpoint", "set SFPUBSUB_ENDPOINT to host:port"):
        way = probes.route_to(settings)
    if way is None:
        return False
    host = way.first[0]
    known = False
    with report.trying("name resolution"):
        addresses = probes.resolve(host)
        found = "an IP address" if addresses == [host] else ", ".join(addresses)
        report.add("name resolution", "ok", f"{host} is {found}")
        known = True
    if not known:
        report.skip(["port", "TLS"], f"{host} cannot be resolved")
        return False
    reached = _check_ports(report, way)
    if probes.is_plaintext(settings):
        report.add("TLS", "skipped", "the setting insecure selects plaintext")
    elif not reached:
        report.add("TLS", "skipped", "the port cannot be reached")
    else:
        reached = False
        with report.trying("TLS"):
            report.add("TLS", "ok", probes.handshake(way, settings.ca_file))
            reached = True
    return reached


def _check_ports(report: _Report, way: NetworkRoute) -> bool:
    """Check the configured port and, for a Salesforce host, the alternative port (443 or 7443).

    Returns:
        Whether the configured port is open.
    """
    through = f" through the proxy {':'.join(map(str, way.first))}" if way.proxy else ""
    others = [port for port in _PORTS if way.host.endswith(_SERVICE) and port != way.port]
    open_ports, failure = [], None
    for port in [way.port, *others]:
        try:
            probes.connect(way._replace(port=port)).close()
        except ProbeError as error:
            if port == way.port:
                failure = error
            else:
                report.add(f"port {port}", "skipped", f"{error}; this port is not configured")
        else:
            open_ports.append(port)
            report.add(f"port {port}", "ok", f"{way.host} answers{through}")
    if failure is None:
        return True
    cure = failure.cure
    if open_ports:
        cure = f"port {open_ports[0]} is open: set SFPUBSUB_ENDPOINT={way.host}:{open_ports[0]}"
    report.add(f"port {way.port}", "failed", str(failure), cure)
    return False


# Checks with a session.


def _check_session(report: _Report, settings: Settings) -> CurrentSession | None:
    session: Session | None = None
    provider: SessionProvider | None = None
    with report.trying("sign-in"):
        http = HttpClient.from_settings(settings)
        provider = session_provider(settings, http)
        sessions = CurrentSession(provider)
        session = sessions.get()
        report.hide(session.access_token)
        how = "an access token" if settings.auth == "token" else settings.auth
        report.add("sign-in", "ok", f"with {how}, to {session.instance_url}")
    if isinstance(provider, RefreshToken):
        with report.trying("token file"):
            exists, about = sign_in_checks.token_file(provider)
            report.add("token file", "ok" if exists else "skipped", about)
    if session is None:
        report.skip(["organisation"], "there is no session")
        return None
    address = sign_in_checks.seen_address(sessions, http)
    if address:
        report.add("address", "ok", address)
    with report.trying("organisation", "set SFPUBSUB_TENANT_ID to the id of the token's org"):
        bearer = Bearer(session.instance_url, session.access_token)
        identity = identity_of(http, bearer, tenant_id=session.tenant_id)
        report.add("organisation", "ok", identity.tenant_id)
    return sessions


def _check_service(
    report: _Report, settings: Settings, sessions: CurrentSession, topic: str | None
) -> None:
    with (
        report.trying("Pub/Sub API"),
        client_of(settings, sessions) as client,
    ):
        client.connect(_CONNECT)
        with suppress(SchemaNotFoundError):
            client.get_schema(_NO_SCHEMA)
        report.add("Pub/Sub API", "ok", "the service responds and accepts the session")
        if topic is not None:
            _check_topic(report, client, topic)
            return
    if topic is not None:
        report.skip(["topic"], "the Pub/Sub API does not accept this session")


def _check_topic(report: _Report, client: PubSubClient, topic: str) -> None:
    with report.trying("topic"):
        info = client.get_topic(topic)
        if info.can_subscribe:
            publishing = "and publish to it" if info.can_publish else "but not publish to it"
            report.add("topic", "ok", f"you may subscribe to {topic} {publishing}")
        else:
            report.add(
                "topic",
                "failed",
                f"you may not subscribe to {topic}",
                "give the user read access to the event, or to the objects of the change events",
            )


def _check_managed(
    report: _Report, settings: Settings, sessions: CurrentSession, name_or_id: str
) -> None:
    name = "managed subscription"
    with report.trying(name):
        tooling = Tooling(sessions, http=HttpClient.from_settings(settings))
        try:
            record = tooling.show(name_or_id)
        except PermissionDeniedError as error:
            # Subscribing may still be allowed.
            report.add(name, "skipped", f"you are not allowed to view the subscription: {error}")
            return
        found = (
            f"{record.developer_name} ({record.id}) for {record.topic_name} is in state "
            f"{record.state}"
        )
        if record.state == "RUN":
            report.add(name, "ok", f"{found}, default replay {record.default_replay}")
        else:
            cure = f"sfpubsub managed start {record.developer_name}"
            report.add(name, "failed", found, cure)


def _check_object(report: _Report, settings: Settings, sessions: CurrentSession, name: str) -> None:
    """Check the requirements for mirroring an object: access to all records, and change events."""
    http = HttpClient.from_settings(settings)
    check = f"object {name}"
    with report.trying(check):
        reader = OrgReader(sessions, http=http, timings=_ONE_TRY)
        check_object(reader, name)
        present_grant(reader, name)
        report.add(check, "ok", "you can see all its records")
    check = f"changes of {name}"
    channel = ALL_CHANGES.rpartition("/")[2]
    try:
        selection = ChannelMembers(sessions, http, topic=ALL_CHANGES)()
    except PermissionDeniedError as error:
        # Change events may still be delivered.
        report.add(check, "skipped", f"you are not allowed to view {channel}: {error}")
    except SfPubSubError as error:
        report.add(check, "failed", str(error))
    else:
        member = selection.member(name)
        if member is None:
            detail = f"not selected for change data capture on {channel}"
            report.add(check, "failed", detail, f"sfpubsub channel add {channel} {name}")
        elif member.filter_expression is not None:
            report.add(check, "failed", str(selection.problem(name)))
        else:
            report.add(check, "ok", f"selected for change data capture on {channel}")
