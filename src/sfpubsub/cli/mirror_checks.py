"""Check whether a mirror's channel delivers the change events of the mirrored objects."""

from __future__ import annotations

from collections.abc import Sequence

from sfpubsub.auth.rest import OrgClient
from sfpubsub.tooling import API_VERSION
from sfpubsub.tooling.event_channels import EventChannels

# Topic of the channel with all objects that are selected for change data capture.
ALL_CHANGES = "/data/ChangeEvents"


def unselected(org: OrgClient, topic: str, objects: Sequence[str]) -> list[str]:
    """Return the objects whose change events the channel does not deliver.

    Args:
        org: Makes the requests.
        topic: Topic of the channel, such as ``/data/ChangeEvents``.
        objects: API names of the objects.

    Raises:
        SfPubSubError: The channel's members could not be determined.
    """
    found = EventChannels(org, API_VERSION).show(topic.rpartition("/")[2])
    members = {member.entity.lower() for member in found.members}
    return [name for name in objects if _event(name).lower() not in members]


def _event(name: str) -> str:
    return f"{name.removesuffix('c') if name.endswith('__c') else name}ChangeEvent"
