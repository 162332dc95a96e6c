"""Watch whether the mirror's user may see every record of each object.

Responses omit records that the user cannot see, and such records look like deleted ones. The
service also stops delivering the events of an object to a user who may not see all of its records,
without an error. So while the right is missing, the object waits, and its absences prove nothing;
when it is back, all its records are read again. The right is compared with that of the last check
(rest/grants.py), which is stored in the target, so an interruption is also found if it lies between
two processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from sfpubsub.errors import ConfigurationError, PermissionDeniedError, RequestRefusedError
from sfpubsub.rest import Grant, OrgReader
from sfpubsub.rest.grants import CHECK_EVERY, Finding, Held, checked
from sfpubsub.spark.ingest.sidecars import Sidecars
from sfpubsub.spark.mirror.queue import MirrorQueue
from sfpubsub.spark.mirror.waiting import Waiting, Why
from sfpubsub.spark.tables.identity import event_names
from sfpubsub.types import Gap, ReplayId

_log = logging.getLogger("sfpubsub.spark")

# Seconds for which a right must be back before the object is read again. The service stops
# delivering events within ten minutes after the right was withdrawn (Pub/Sub API guide,
# considerations); how soon it begins again is not documented, so the same time is assumed. A read
# that began earlier might miss a change whose event is not delivered either.
SETTLING = 600.0


# Error codes of a query for objects or fields that the user may not see (REST API guide, status
# codes).
_HIDDEN = frozenset({"INVALID_TYPE", "INVALID_FIELD"})


class Rights:
    """Checks the user's right to see every record, and acts on what it finds. Not thread-safe.

    Args:
        reader: Sends requests to the org as the mirror's user.
        queue: Stores what is known about the right.
        sidecars: Stores gaps beside the raw table.
        waiting: Records which objects wait.
        tell_gap: Reports a gap, once it is stored.
        ask: Requests a read of all records of an object, after which earlier absences no longer
            count. It must be durable when the call returns.
        say: Called with each message for the user.
        clock: Monotonic clock, in seconds.
        wall: Wall clock, in seconds since the epoch.
    """

    def __init__(
        self,
        reader: OrgReader,
        queue: MirrorQueue,
        sidecars: Sidecars,
        waiting: Waiting,
        tell_gap: Callable[[Gap], object],
        ask: Callable[[str], None],
        say: Callable[[str], None],
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._queue = queue
        self._sidecars = sidecars
        self._waiting = waiting
        self._tell_gap = tell_gap
        self._ask = ask
        self._say = say
        self._clock, self._wall = clock, wall
        self._held: dict[str, Held] | None = None
        self._checked: dict[str, float] = {}
        self._back: dict[str, tuple[float, Grant]] = {}
        self._position: ReplayId | None = None

    def is_due(self, names: Sequence[str]) -> bool:
        """Return whether some objects were not checked for `CHECK_EVERY` seconds."""
        since = self._clock() - CHECK_EVERY
        return any(self._checked.get(name, since) <= since for name in names)

    def is_held(self, name: str) -> bool:
        """Return whether the right was there when this process last checked it."""
        return name in self._checked and not self.missing([name])

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return those objects of which the user could not see every record at the last check.

        Objects whose right is back, but has not settled yet, are included.
        """
        held = self._stored()
        return [name for name in names if name in held and not held[name].grant]

    def check_present(self, names: Sequence[str]) -> None:
        """Check that no object waits for its right, as of the last check.

        Raises:
            PermissionDeniedError: Some do. Those whose right is back, and settles, do not count.
        """
        lacking = [name for name in self.missing(names) if name not in self._back]
        if lacking:
            raise PermissionDeniedError(missing_rights(lacking))

    def epoch(self, name: str) -> int:
        """Return how often the right for an object was interrupted (`Held.epoch`)."""
        held = self._stored().get(name)
        return 0 if held is None else held.epoch

    def stands(self, name: str, epoch: int) -> bool:
        """Return whether the absences of a read count that began in *epoch*, and has ended.

        Call `check` after the end of the read, and then this.
        """
        return self.is_held(name) and self.epoch(name) == epoch

    def check(self, names: Sequence[str], position: ReplayId | None = None) -> None:
        """Check the right for some objects now.

        Args:
            names: The objects.
            position: The stream's last position, for the description of a gap.

        Raises:
            SfPubSubError: The org could not be asked: nothing is concluded.
            WriteError: What was found could not be stored.
        """
        grants = self._grants(names)
        gap_from, self._position = self._position, position or self._position
        for name in names:
            self._checked[name] = self._clock()
            now = grants[name]
            finding, held = checked(self._stored().get(name), now)
            if finding is Finding.LOST:
                gap = Gap("rights", _topic(name), gap_from, position, entity=name)
                self._lose(name, held, replace(gap, occurrence=f"interruption {held.epoch}"))
                finding, held = checked(held, now)
            if finding is Finding.BACK:
                self._return(name, held)
            elif finding is Finding.MISSING:
                self._back.pop(name, None)
                self._wait(name, missing_rights([name]))
                self._keep(name, held)
            elif finding is Finding.HELD:
                self._keep(name, held)

    def forget(self, name: str) -> None:
        """Forget an object that is no longer mirrored."""
        self._checked.pop(name, None)
        self._back.pop(name, None)
        held = self._stored()
        if held.pop(name, None) is not None:
            self._queue.keep_rights(held)

    def _grants(self, names: Sequence[str]) -> dict[str, Grant]:
        try:
            return self._reader.grants(names)
        except (PermissionDeniedError, RequestRefusedError) as error:
            is_denied = isinstance(error, PermissionDeniedError) and error.error_code is not None
            if not is_denied and error.error_code not in _HIDDEN:
                raise  # for example a proxy's answer, or a timeout: it says nothing about rights
            # The user may not even see permissions, so the right is not known to hold.
            _log.warning("the user's permissions cannot be read: %s", error)
            return dict.fromkeys(names, Grant())

    def _lose(self, name: str, held: Held, gap: Gap) -> None:
        self._back.pop(name, None)
        gaps = self._sidecars.keep_gaps([gap])
        self._stored()[name] = held
        self._queue.keep_rights(self._stored(), gaps)
        self._tell_gap(gap)
        self._wait(name, missing_rights([name]))

    def _return(self, name: str, held: Held) -> None:
        now = self._clock()
        since, grant = self._back.get(name, (now, held.grant))
        if not held.grant.continues(grant):
            since = now
        if now - since < SETTLING:
            text = (
                f"the user may see every record of {name} again: all records will be reread ten "
                f"minutes later, when the service is sure to deliver events again"
            )
            if name not in self._back:
                self._say(text)
            self._back[name] = since, held.grant
            self._waiting.begin(name, Why.RIGHTS, text, self._wall())
            return
        self._back.pop(name, None)
        self._say(f"{name}: the user may see every record again, so all records will be reread")
        self._ask(name)  # before the right counts as held: after a crash, it is asked again
        self._keep(name, held)

    def _keep(self, name: str, held: Held) -> None:
        if held.grant:
            self._waiting.end(name, Why.RIGHTS)
        if self._stored().get(name) != held:
            self._stored()[name] = held
            self._queue.keep_rights(self._stored())

    def _wait(self, name: str, text: str) -> None:
        if self._waiting.begin(name, Why.RIGHTS, text, self._wall()):
            self._say(text)

    def _stored(self) -> dict[str, Held]:
        if self._held is None:
            self._held = self._queue.rights()
        return self._held


def check_rights(reader: OrgReader, objects: Sequence[str]) -> None:
    """Check that the objects can be mirrored.

    Args:
        reader: Sends requests to the org as the mirror's user.
        objects: API names of the objects.

    Raises:
        ConfigurationError: A name differs in case from the object's name, or the object cannot be
            queried.
        PermissionDeniedError: The user may not be able to see all records.
        RequestRefusedError: An object does not exist, or the user cannot see it.
    """
    for name in objects:
        check_object(reader, name)
    hidden = [name for name, grant in reader.grants(objects).items() if not grant]
    if hidden:
        raise PermissionDeniedError(missing_rights(hidden))


def check_object(reader: OrgReader, name: str) -> None:
    """Check that an object exists and can be mirrored, whatever the user's rights.

    Raises:
        ConfigurationError: The name differs in case from the object's name, or the object cannot be
            queried.
        RequestRefusedError: The object does not exist, or the user cannot see it.
    """
    found = reader.describe(name)
    if found.name != name:
        raise ConfigurationError(f"{name} is called {found.name} in the org: use that name")
    if not found.queryable:
        raise ConfigurationError(
            f"{name} cannot be mirrored because it cannot be queried: remove it from the objects "
            f"to mirror"
        )


def present_grant(reader: OrgReader, entity: str) -> Grant:
    """Return what lets the user see every record of an object now.

    Raises:
        PermissionDeniedError: The user may not be able to see all records.
    """
    grant = reader.grants([entity])[entity]
    if not grant:
        raise PermissionDeniedError(missing_rights([entity]))
    return grant


def missing_rights(objects: Sequence[str]) -> str:
    """Return the message about objects of which the user may not see every record."""
    return (
        f"the user may not be able to see every record of {', '.join(objects)}, and hidden records "
        f"cannot be told from deleted ones: grant the user View All for these objects in a "
        f"permission set, or View All Data"
    )


def _topic(entity: str) -> str:
    (event_type,) = event_names([entity]) - {entity}
    return f"/data/{event_type}"
