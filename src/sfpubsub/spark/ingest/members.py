"""Ask the org which objects' change events a channel delivers."""

from __future__ import annotations

from sfpubsub.auth.http import HttpClient
from sfpubsub.auth.rest import OrgClient
from sfpubsub.auth.session import CurrentSession
from sfpubsub.spark.ingest.selection import Member, Selection
from sfpubsub.tooling import API_VERSION, Tooling
from sfpubsub.tooling.event_channels import STANDARD, ChannelMember, EventChannels

# Topic of the channel with all objects that are selected for change data capture.
ALL_CHANGES = "/data/ChangeEvents"


class ChannelMembers:
    """Asks for the members of the channel that a topic or managed subscription delivers.

    Args:
        sessions: The session for the requests.
        http: Makes the requests.
        topic: The topic; None if *managed* is given.
        managed: Name or id of the managed subscription, whose topic is looked up first.
    """

    def __init__(
        self,
        sessions: CurrentSession,
        http: HttpClient,
        *,
        topic: str | None = None,
        managed: str | None = None,
    ) -> None:
        self._sessions = sessions
        self._http = http
        self._topic = topic  # cannot change, not even that of a managed subscription
        self._managed = managed or ""

    def topic(self) -> str:
        """Return the topic, which is asked for if only the managed subscription is known.

        Raises:
            SfPubSubError: The topic could not be determined.
        """
        if self._topic is None:
            tooling = Tooling(self._sessions, http=self._http)
            self._topic = tooling.show(self._managed).topic_name
        return self._topic

    def __call__(self) -> Selection:
        """Return the members now.

        For the topic of one object, whose events the service delivers if any channel selects the
        object, the result has that object's member of the standard channel or of another.

        Raises:
            SfPubSubError: The members could not be determined.
        """
        name = self.topic().rpartition("/")[2]
        channels = EventChannels(OrgClient(self._sessions, self._http), API_VERSION)
        if name.endswith("ChangeEvent"):
            found: dict[str, Member] = {}
            for channel in channels.channels():  # the standard channel comes first
                for member in channel.members:
                    if member.entity.lower() == name.lower():
                        is_standard = channel.name == STANDARD
                        # What the filters of other channels mean for this topic is not known.
                        own = _member(member) if is_standard else Member(member.id)
                        found.setdefault(member.entity, own)
            return Selection(STANDARD, found)
        members = channels.show(name).members
        return Selection(name, {each.entity: _member(each) for each in members})


def _member(member: ChannelMember) -> Member:
    return Member(member.id, member.filter_expression)
