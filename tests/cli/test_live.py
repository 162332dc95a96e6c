"""The progress line of a running command, and the messages printed beside it."""

from __future__ import annotations

import pytest

from sfpubsub.cli.live import EVERY, LiveLine, echo
from sfpubsub.cli.summary import Summary
from sfpubsub.cli.watching import Address, Listen
from sfpubsub.monitoring.observation import Observation
from sfpubsub.types import Gap, ReplayId

from ..monitoring.support import Clock, Subscription

CLEAR = "\r\033[K"


@pytest.fixture
def clock():
    return Clock()


def test_terminal_line_is_updated_in_place(clock, capsys, monkeypatch):
    """On a terminal, the line is cleared before each update or message, and the last one remains in
    view at the end.
    """
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    texts = iter(["1 event", "2 events", "3 events", "4 events"])
    with LiveLine(lambda: next(texts), clock=clock) as line:
        line.refresh()
        line.refresh()
        echo("waiting: a reason")
        line.refresh()
    echo("at the end")
    assert capsys.readouterr().err == (
        f"{CLEAR}1 event{CLEAR}2 events{CLEAR}waiting: a reason\n"
        f"{CLEAR}3 events{CLEAR}4 events\nat the end\n"
    )


def test_line_is_cut_to_the_terminal_width(clock, capsys, monkeypatch):
    """A longer line is cut to fit the terminal, because one that wrapped could not be cleared."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "11")
    with LiveLine(lambda: "0123456789abc", clock=clock) as line:
        line.refresh()
    assert capsys.readouterr().err == f"{CLEAR}0123456789{CLEAR}0123456789\n"


def test_without_a_terminal_a_line_is_printed_every_30_seconds(clock, capsys):
    """Without a terminal a line is printed every 30 s and, on request, at the end.

    An empty line is never printed.
    """
    text = ""
    with LiveLine(lambda: text, ends=True, is_terminal=False, clock=clock) as line:
        for second in range(95):
            text = f"{second} events" if second > 30 else ""
            line.refresh()
            clock.now += 1
    line.refresh()
    assert EVERY == 30.0
    assert capsys.readouterr().err.splitlines() == ["60 events", "90 events", "94 events"]


def test_short_run_prints_no_line(clock, capsys):
    """Without a terminal, a run of less than 30 s prints no line by default."""
    with LiveLine(lambda: "1 event", is_terminal=False, clock=clock) as line:
        line.refresh()
    assert capsys.readouterr().err == ""


def test_summary_line_contents(clock):
    """The line shows the number of events, their recent rate, the worst lag and the age of the
    newest commit. Reconnects and gaps are shown only if there were any.
    """
    one = Subscription()
    observed = [Observation("managed", "A", clock=clock), Observation("topic", "B", clock=clock)]
    observed[1].follow(Subscription(delivered=7))
    summary = Summary(lambda: [each.facts() for each in observed], clock)
    assert summary() == "7 events, 0/s"
    observed[0].follow(one)
    for _ in range(30):
        clock.now += 1
        one.becomes(delivered=one.said.delivered + 50, responses=one.said.responses + 1)
        text = summary()
    assert text == "1507 events, 50/s, 0.0 s behind"
    gap = Gap("rejected", "A")
    one.becomes(committed=ReplayId(b"\x01"), reconnects=2, gaps=(gap,))
    summary()
    clock.now += 4
    assert summary().endswith("behind, committed 4.0 s ago, 2 reconnects, 1 gap")
    assert Summary(list, clock)() == "", "before anything is read"


def test_the_first_summary_has_a_rate(clock):
    """The first line, which a command without a terminal prints after 30 s, has the rate so far.

    Time before the first subscription does not count.
    """
    observed: list[Observation] = []
    summary = Summary(lambda: [each.facts() for each in observed], clock)
    clock.now += 100
    assert summary() == ""
    observed.append(Observation("managed", "A", clock=clock))
    observed[0].follow(Subscription(delivered=1050))
    clock.now += EVERY
    assert summary() == "1050 events, 35/s"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9090", Address("127.0.0.1", 9090)),
        (":9090", Address("127.0.0.1", 9090)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("[::1]:80", Address("::1", 80)),
        ("metrics.local:80", Address("metrics.local", 80)),
    ],
)
def test_listen_address_forms(text, address):
    """A bare port binds to 127.0.0.1 only; a host may precede the port."""
    assert Listen().convert(text, None, None) == address


@pytest.mark.parametrize("text", ["", "x", "65536", "-1", "host:", "²"])
def test_invalid_listen_address_is_a_usage_error(text):
    """The error shows the two valid forms, PORT and HOST:PORT."""
    from click import BadParameter

    with pytest.raises(BadParameter, match="is not a valid address: use PORT or HOST:PORT"):
        Listen().convert(text, None, None)
