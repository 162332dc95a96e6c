"""The commands ``sfpubsub topics``, ``channel`` and ``usage``: their output and their errors."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable

import pytest

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession, Session, StaticSession
from sfpubsub.cli.main import run
from sfpubsub.emulator.org.schemas import Schema
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.errors import RemoteProtocolError, RequestRefusedError
from sfpubsub.tooling.event_channels import EventChannels
from sfpubsub.tooling.usage import Usages

from ..auth.servers import Reply, Request, https_host
from ..client.test_managed import ACCOUNT, TOPIC, orders
from ..pages import blocks, page
from .test_cli import assert_one_line_error, point_at


@pytest.fixture
def emulator(run_emulator, monkeypatch):
    started = run_emulator(settings=Settings(daily_deliveries=10))
    point_at(started, monkeypatch)
    return started


def lines(capsys) -> list[dict]:
    """Return the JSON lines that were printed to stdout."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_channel_lifecycle(emulator, capsys):
    """Each ``channel`` subcommand prints the channel as one JSON line.

    A subscriber of the channel receives its member's events, and removing a member requires --yes.
    """
    assert run(["channel", "create", "All", "--type", "event", "--label", "Everything"]) == 0
    (made,) = lines(capsys)
    channel = {
        "id": made["id"],
        "name": "All__chn",
        "channel_type": "event",
        "label": "Everything",
        "topic": "/event/All__chn",
        "members": [],
    }
    assert made == channel
    added = ["channel", "add", "All__chn", "Order_Event__e", "--filter", "City__c = 'Rome'"]
    assert run(added) == 0
    (made,) = lines(capsys)
    (member,) = made["members"]
    assert member == {
        "id": member["id"],
        "entity": "Order_Event__e",
        "filter_expression": "City__c = 'Rome'",
        "enriched_fields": [],
    }
    emulator.publish(TOPIC, orders(1))
    reading = ["subscribe", "--topic", "/event/All__chn", "--replay", "earliest"]
    assert run([*reading, "--max-events", "1"]) == 0
    assert lines(capsys)[0]["event_name"] == "Order_Event__e"
    assert run(["channel", "show", "all"]) == 0
    assert lines(capsys) == [made]
    assert run(added) == 1
    assert_one_line_error(capsys, "All__chn already contains Order_Event__e")
    assert run(["channel", "remove", "All", "Order_Event__e"]) == 2
    assert_one_line_error(capsys, "use --yes")
    assert run(["channel", "remove", "All", "Order_Event__e", "--yes"]) == 0
    assert lines(capsys) == [channel]
    assert run(added) == 0
    assert run(["channel", "delete", "All", "--yes"]) == 0
    assert lines(capsys)[-1]["name"] == "All__chn"
    assert run(["channel", "show", "All"]) == 1
    assert_one_line_error(capsys, "no channel All__chn")


def test_object_name_stands_for_its_change_event(emulator, capsys):
    """On a channel of change events, the name of an object selects its change event."""
    assert run(["channel", "create", "Changes", "--type", "data"]) == 0
    enriched = ["--enrich", "Name", "--enrich", "Industry"]
    assert run(["channel", "add", "Changes", "Account", *enriched]) == 0
    (member,) = lines(capsys)[-1]["members"]
    assert member["entity"] == "AccountChangeEvent"
    assert member["enriched_fields"] == ["Name", "Industry"]
    assert run(["channel", "remove", "ChangeEvents", "Account", "--yes"]) == 0
    (standard,) = lines(capsys)
    assert (standard["id"], standard["members"]) == (None, [])
    assert emulator.bus.members("/data/ChangeEvents") == []
    assert run(["channel", "add", "Changes", "Nothing__c"]) == 1
    assert_one_line_error(capsys, "Nothing__ChangeEvent")


def test_topics_are_listed_with_kind_and_members(emulator, capsys):
    """``topics`` lists events, selected change events, and channels with their members."""
    assert run(["channel", "create", "All", "--type", "event"]) == 0
    assert run(["channel", "add", "All", "Order_Event__e"]) == 0
    capsys.readouterr()
    assert run(["topics"]) == 0
    assert [(row["topic"], row["kind"], row["members"]) for row in lines(capsys)] == [
        (TOPIC, "event", []),
        ("/data/AccountChangeEvent", "change", []),
        ("/data/ChangeEvents", "channel", ["AccountChangeEvent"]),
        ("/event/All__chn", "channel", ["Order_Event__e"]),
    ]


def test_usage(emulator, capsys):
    """``usage`` prints the org's limits and how much of each is used.

    --by-event adds the published and delivered counts for each event.
    """
    emulator.publish(TOPIC, orders(2))
    emulator.publish("/data/AccountChangeEvent", [ACCOUNT])
    reading = ["subscribe", "--topic", TOPIC, "--replay", "earliest", "--max-events", "2"]
    assert run(reading) == 0
    capsys.readouterr()
    assert run(["usage"]) == 0
    daily, hourly = lines(capsys)
    assert (daily["name"], daily["most"]) == ("DailyDeliveredPlatformEvents", 10)
    assert (daily["used"], daily["remaining"]) == (2, 8)
    assert (hourly["name"], hourly["used"]) == ("HourlyPublishedPlatformEvents", 2)
    assert run(["usage", "--by-event"]) == 0
    assert lines(capsys)[2:] == [
        {"event": "AccountChangeEvent", "published": 1, "delivered": 0},
        {"event": "Order_Event__e", "published": 2, "delivered": 2},
    ]


def test_commands_of_the_channels_page_run(emulator, capsys):
    """Every command in docs/how-to/channels.md succeeds when run in the order of the page."""
    avro = json.loads(
        emulator.bus.schema(emulator.bus.topic("/data/AccountChangeEvent").schema_id).text
    )
    emulator.bus.put_topic(
        "/data/ContactChangeEvent", Schema(json.dumps({**avro, "name": "ContactChangeEvent"}))
    )
    shown = "".join(blocks(page("channels"), "sh"))
    commands = [shlex.split(line)[1:] for line in shown.splitlines() if line]
    assert len(commands) > 8
    for command in commands:
        asks = command[:2] in (["channel", "remove"], ["channel", "delete"])
        assert run([*command, *(["--yes"] if asks else [])]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "Two__Words", "--type", "event"], "is not a valid channel name"),
        (["create", "ChangeEvents", "--type", "data"], "is the standard channel of every org"),
        (["create", "All", "--type", "data", "--label", " "], "a label must have 1 to 80"),
        (["show", "Nobody"], "no channel Nobody__chn"),
        (["add", "ChangeEvents", "a b"], "is not a valid event or object name"),
        (["remove", "ChangeEvents", "Contact", "--yes"], "does not contain ContactChangeEvent"),
        (["delete", "ChangeEvents", "--yes"], "cannot be deleted"),
    ],
)
def test_invalid_channel_request_changes_nothing(emulator, capsys, arguments, said):
    """An invalid request exits with code 1 and one line that says why, and changes no channel."""
    before = emulator.event_channels.channels(), emulator.event_channels.members()
    assert run(["channel", *arguments]) == 1
    assert_one_line_error(capsys, said)
    assert (emulator.event_channels.channels(), emulator.event_channels.members()) == before


CHANNEL = {"Id": "0YL000000000001", "DeveloperName": "A", "ChannelType": "data", "MasterLabel": "A"}
MEMBER = {"eventChannel": "A__chn", "selectedEntity": "AccountChangeEvent"}


def answering(channels: object, metadata: object) -> Callable[[Request], Reply]:
    """Return a request handler that responds to an org's queries.

    A query for channel members returns one row with *metadata*; any other query returns the rows
    in *channels*.
    """

    def answer(request: Request) -> Reply:
        if "+FROM+PlatformEventChannelMember" in request.path.replace("%20", "+"):
            rows = [{"Id": "0v8000000000001AAA", "Metadata": metadata}]
        else:
            rows = channels
        return Reply(200, {"size": 1, "done": True, "records": rows})

    return answer


@pytest.fixture
def org():
    """Return a function that starts a fake org with a request handler and returns its client."""
    with contextlib.ExitStack() as opened:

        def make(answer: Callable[[Request], Reply]) -> OrgClient:
            host = opened.enter_context(https_host(answer))
            session = Session("00D000000000001!token", host.url, "00D000000000001AAA")
            return OrgClient(CurrentSession(StaticSession(session)), HttpClient())

        yield make


def test_names_are_read_from_metadata(org):
    """A member's channel and event come from its Metadata, not from columns that may be ids."""
    channels = EventChannels(org(answering([CHANNEL], MEMBER)), "60.0").channels()
    assert [(item.topic, len(item.members)) for item in channels] == [
        ("/data/ChangeEvents", 0),
        ("/data/A__chn", 1),
    ]


@pytest.mark.parametrize(
    ("channels", "metadata"),
    [
        ([{**CHANNEL, "Id": "../../x"}], MEMBER),
        ([{**CHANNEL, "ChannelType": "topic"}], MEMBER),
        ([{**CHANNEL, "MasterLabel": None}], MEMBER),
        ([CHANNEL], None),
        ([CHANNEL], {**MEMBER, "selectedEntity": 1}),
        ([CHANNEL], {**MEMBER, "enrichedFields": ["Name"]}),
        ([CHANNEL], {**MEMBER, "enrichedFields": [{}]}),
        ("x", MEMBER),
    ],
)
def test_malformed_channel_answer_is_a_protocol_error(org, channels, metadata):
    """A malformed response to a query for channels or their members raises RemoteProtocolError."""
    with pytest.raises(RemoteProtocolError):
        EventChannels(org(answering(channels, metadata)), "60.0").channels()


@pytest.mark.parametrize(
    "answer",
    [[], {"DailyDeliveredPlatformEvents": {"Max": 1}}, {"DailyDeliveredPlatformEvents": 1}],
)
def test_malformed_limits_are_a_protocol_error(org, answer):
    """Limits that are malformed or lack a figure raise an error instead of counting as zero."""
    with pytest.raises(RemoteProtocolError):
        Usages(org(lambda _request: Reply(200, answer)), "60.0").allocations()


def test_usage_by_event_is_none_without_enhanced_usage_metrics(org):
    """The usage by event is None if the org does not know the column EventName.

    Any other refusal, or a malformed row, raises an error.
    """
    refusal = [{"errorCode": "INVALID_FIELD", "message": "No such column 'EventName'"}]
    usages = Usages(org(lambda _request: Reply(400, refusal)), "60.0")
    assert usages.by_event() is None
    limited = [{"errorCode": "MALFORMED_QUERY", "message": "x"}]
    with pytest.raises(RequestRefusedError):
        Usages(org(lambda _request: Reply(400, limited)), "60.0").by_event()
    rows = [{"EventName": "A__e", "UsageType": None, "Value": 1}]
    page = {"size": 1, "done": True, "records": rows}
    with pytest.raises(RemoteProtocolError):
        Usages(org(lambda _request: Reply(200, page)), "60.0").by_event()
