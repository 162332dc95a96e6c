"""The protocol's half that is about channels: which to ask for, and what each answer means.

As the rest of the protocol it has no I/O and no clock; what is to be done goes into the list of
commands that it shares with the session's half.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sfpubsub.errors import LocalProtocolError, SfPubSubError
from sfpubsub.streaming import bayeux
from sfpubsub.streaming.bayeux import Message, Refusal, refusal_of
from sfpubsub.streaming.channels import Channel, Channels, Stage
from sfpubsub.streaming.commands import Command, Deliver, Report, Settle
from sfpubsub.streaming.failures import error_for, is_replay_refused
from sfpubsub.types import GapReason

logger = logging.getLogger("sfpubsub.streaming")

# Room for number and client id in the size of a request; ids have about 30 characters.
_NUMBER, _CLIENT_ID = "0" * 20, "x" * 200


class Subscriptions:
    """The channels of one client, asked for and answered.

    Args:
        dumps: Makes JSON.
        fallback: Where a channel goes on whose position is refused; None to tell the application.
        out: Where commands go.
    """

    def __init__(
        self, dumps: Callable[[Any], str], fallback: int | None, out: list[Command]
    ) -> None:
        self.channels = Channels()
        self._dumps = dumps
        self._fallback = fallback
        self._out = out

    def subscribe(self, name: str, start: int, waiter: object, *, rewind: bool) -> None:
        """Want a channel; as `StreamingProtocol.subscribe`."""
        channel = self.channels.find(name)
        if channel is None:
            channel = Channel(name, name.partition("?")[0], start, waiter)
            if self._size(channel.request(_NUMBER, _CLIENT_ID)) > bayeux.MAX_REQUEST:
                raise LocalProtocolError(
                    f"the filter of {channel.path} is too long: a request has at most "
                    f"{bayeux.MAX_REQUEST} bytes"
                )
            self.channels.add(channel)
        elif rewind or channel.waiter is not None:
            raise LocalProtocolError(f"{name} is subscribed already: unsubscribe it first")
        else:
            self._out.append(Settle(waiter))

    def unsubscribe(self, name: str, waiter: object) -> None:
        """Want a channel no longer; as `StreamingProtocol.unsubscribe`."""
        channel = self.channels.find(name)
        if channel is not None and channel.waiter is not None:
            raise LocalProtocolError(f"{name} is being subscribed or unsubscribed: wait for that")
        if channel is not None and channel.stage is Stage.ACTIVE:
            channel.stage, channel.waiter = Stage.LEAVING, waiter
        else:
            if channel is not None:  # between two sessions: it is just not subscribed again
                self.channels.remove(channel)
            self._out.append(Settle(waiter))

    def requests(
        self, client_id: str, number: Callable[[], str], *, has_replay: bool
    ) -> list[tuple[Message, Channel | None]]:
        """Return what to ask for now: as many messages as fit into one request."""
        messages: list[tuple[Message, Channel | None]] = []
        size = len("[]")
        for channel in self.channels.at(Stage.WANTED, Stage.LEAVING):
            message = channel.request(number(), client_id)
            size += self._size(message)
            if messages and size > bayeux.MAX_REQUEST:
                break
            messages.append((message, channel))
            if channel.stage is Stage.LEAVING:
                channel.stage = Stage.LEFT
                continue
            if channel.was_active and not (channel.is_anchored and has_replay):
                self._report(channel, "unanchored", None)
                channel.was_active = False  # told; a second failure before the answer is one
            channel.stage = Stage.ASKED
        return messages

    def heard(self, channel: Channel, kind: str, reply: Message) -> None:
        """Take the answer to a subscribe or unsubscribe, if it is not about the session."""
        refusal = refusal_of(reply)
        if kind == bayeux.UNSUBSCRIBE:
            error = None
            if reply["successful"] is True:
                self.channels.remove(channel)
            else:
                error = error_for(f"unsubscribing {channel.name}", refusal)
                channel.stage = Stage.ACTIVE
            self._tell(channel, error)
        elif reply["successful"] is True:
            channel.stage, channel.was_active = Stage.ACTIVE, True
            logger.info("subscribed to %s from %d", channel.name, channel.position)
            self._tell(channel, None)
        else:
            self._refused(channel, refusal)

    def lost(self) -> None:
        """The session is gone: everything is to be asked for again, but for what was leaving."""
        for channel in self.channels.lost():
            self._tell(channel, None)

    def give_up(self, error: SfPubSubError) -> None:
        """Callers have waited long enough: what they wait for is not subscribed later."""
        for channel in self.channels:
            if channel.waiter is not None:
                self.channels.remove(channel)
                self._tell(channel, error)

    def end(self, error: SfPubSubError) -> None:
        """It is over; tell who waits."""
        for channel in self.channels:
            self._tell(channel, error)

    @property
    def are_well(self) -> bool:
        """Whether the server has confirmed all that is wanted."""
        return not self.channels.at(Stage.WANTED, Stage.ASKED)

    def _refused(self, channel: Channel, refusal: Refusal) -> None:
        code, fallback = str(refusal.true.code), self._fallback
        if is_replay_refused(refusal) and fallback is not None and fallback != channel.position:
            self._report(channel, "rejected", code)
            channel.start, channel.last = fallback, None
            channel.stage, channel.was_active = Stage.WANTED, False
            return
        gap = channel.gap("rejected", code)
        error = error_for(f"subscribing to {channel.name}", refusal, gap=gap)
        self.channels.remove(channel)
        if channel.waiter is None:  # nobody waits, so whoever reads must see it
            self._out.append(Deliver([error]))
        self._tell(channel, error)

    def _size(self, message: Message) -> int:
        return len(self._dumps([message]).encode())

    def _tell(self, channel: Channel, error: SfPubSubError | None) -> None:
        if channel.waiter is not None:
            self._out.append(Settle(channel.waiter, error))
            channel.waiter = None

    def _report(self, channel: Channel, reason: GapReason, error_code: str | None) -> None:
        gap = channel.gap(reason, error_code)
        logger.warning("%s", gap)
        self._out.append(Report(gap))
