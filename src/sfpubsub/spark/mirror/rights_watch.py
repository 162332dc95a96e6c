"""What follows from a check of the user's right to see every record of each object.

Responses omit records that the user cannot see, and such records look like deleted ones. The
service also stops delivering the events of an object to a user who may not see all of its records,
without an error. So while the right is missing, the object waits, and its absences prove nothing;
when it is back, all its records are read again. The right is compared with that of the last check
(rest/grants.py), which is stored in the target, so an interruption is also found if it lies between
two processes. This module is pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sfpubsub.errors import PermissionDeniedError
from sfpubsub.rest.grants import CHECK_EVERY, Finding, Grant, Held, checked, missing_rights
from sfpubsub.spark.mirror import actions as do
from sfpubsub.spark.mirror.actions import Decision
from sfpubsub.spark.mirror.deadlines import Deadlines
from sfpubsub.spark.mirror.waiting import Waiting, Why
from sfpubsub.spark.tables.identity import event_names
from sfpubsub.types import Gap, ReplayId

# Seconds for which a right must be back before the object is read again. The service stops
# delivering events within ten minutes after the right was withdrawn (Pub/Sub API guide,
# considerations); how soon it begins again is not documented, so the same time is assumed. A read
# that began earlier might miss a change whose event is not delivered either.
SETTLING = 600.0


class RightsWatch:
    """Watches the user's right to see every record. Not thread-safe.

    Args:
        held: What is stored about the right, by object.
        gaps: Names of the gaps that need no further rereads; those of interruptions are added.
        waiting: Where objects wait.
        time: The present moment.
        request: Requests a read of all records of an object, after which earlier absences no longer
            count.
    """

    def __init__(
        self,
        held: Mapping[str, Held],
        gaps: list[str],
        waiting: Waiting,
        time: Deadlines,
        request: Callable[[str], Decision[None]],
    ) -> None:
        self._held = dict(held)
        self._gaps = gaps
        self._waiting = waiting
        self._time = time
        self._request = request
        self._checked: dict[str, float] = {}
        self._back: dict[str, tuple[float, Grant]] = {}
        self._position: ReplayId | None = None

    def is_due(self, names: Sequence[str]) -> bool:
        """Return whether some objects were not checked for `CHECK_EVERY` seconds."""
        never = float("-inf")
        return any(self._time.is_past(self._checked.get(n, never) + CHECK_EVERY) for n in names)

    def is_held(self, name: str) -> bool:
        """Return whether the right was there when this process last checked it."""
        return name in self._checked and not self.missing([name])

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return those objects of which the user could not see every record at the last check.

        Objects whose right is back, but has not settled yet, are included.
        """
        return [name for name in names if name in self._held and not self._held[name].grant]

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
        held = self._held.get(name)
        return 0 if held is None else held.epoch

    def stands(self, name: str, epoch: int) -> bool:
        """Return whether the absences of a read count that began in *epoch*, and has ended.

        Call `check` after the end of the read, and then this.
        """
        return self.is_held(name) and self.epoch(name) == epoch

    def check(self, names: Sequence[str], position: ReplayId | None = None) -> Decision[None]:
        """Check the right for some objects now.

        Args:
            names: The objects.
            position: The stream's last position, for the description of a gap.

        Raises:
            SfPubSubError: The org could not be asked: nothing is concluded.
            WriteError: What was found could not be stored.
        """
        grants = yield do.ReadGrants(tuple(names))
        gap_from, self._position = self._position, position or self._position
        for name in names:
            self._checked[name] = self._time.now.clock
            now = grants[name]
            finding, held = checked(self._held.get(name), now)
            if finding is Finding.LOST:
                gap = Gap("rights", _topic(name), gap_from, position, entity=name)
                gap = replace(gap, occurrence=f"interruption {held.epoch}")
                yield from self._lose(name, held, gap)
                finding, held = checked(held, now)
            if finding is Finding.BACK:
                yield from self._return(name, held)
            elif finding is Finding.MISSING:
                self._back.pop(name, None)
                yield from self._wait(name, missing_rights([name]))
                yield from self._keep(name, held)
            elif finding is Finding.HELD:
                yield from self._keep(name, held)

    def forget(self, name: str) -> Decision[None]:
        """Forget an object that is no longer mirrored."""
        self._checked.pop(name, None)
        self._back.pop(name, None)
        if self._held.pop(name, None) is not None:
            yield do.KeepRights(dict(self._held))

    def _lose(self, name: str, held: Held, gap: Gap) -> Decision[None]:
        self._back.pop(name, None)
        self._gaps += yield do.StoreGap(gap)
        self._held[name] = held
        yield do.KeepRights(dict(self._held), tuple(self._gaps))
        yield do.ReportGap(gap)
        yield from self._wait(name, missing_rights([name]))

    def _return(self, name: str, held: Held) -> Decision[None]:
        now = self._time.now.clock
        since, grant = self._back.get(name, (now, held.grant))
        if not held.grant.continues(grant):
            since = now
        if now - since < SETTLING:
            text = (
                f"the user may see every record of {name} again: all records will be reread ten "
                f"minutes later, when the service is sure to deliver events again"
            )
            if name not in self._back:
                yield do.Say(text)
            self._back[name] = since, held.grant
            self._waiting.begin(name, Why.RIGHTS, text)
            return
        self._back.pop(name, None)
        yield do.Say(f"{name}: the user may see every record again, so all records will be reread")
        # Before the right counts as held: after a crash, it is requested again.
        yield from self._request(name)
        yield from self._keep(name, held)

    def _keep(self, name: str, held: Held) -> Decision[None]:
        if held.grant:
            self._waiting.end(name, Why.RIGHTS)
        if self._held.get(name) != held:
            self._held[name] = held
            yield do.KeepRights(dict(self._held))

    def _wait(self, name: str, text: str) -> Decision[None]:
        if self._waiting.begin(name, Why.RIGHTS, text):
            yield do.Say(text)


def _topic(entity: str) -> str:
    (event_type,) = event_names([entity]) - {entity}
    return f"/data/{event_type}"
