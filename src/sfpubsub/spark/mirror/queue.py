"""The reread queue of a mirror, and what the mirror stores with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sfpubsub.rest.grants import Held
from sfpubsub.spark.mirror.absences import Loss, kept
from sfpubsub.spark.records.queue import RereadQueue

# Names of the stored facts: the gaps of the stream for which rereads were requested, the channel's
# members, the user's rights, and rows deleted by absence, the latter two by object.
_GAPS, _SELECTED, _RIGHTS, _LOSSES = "gaps", "selected", "rights", "losses"


class MirrorQueue(RereadQueue):
    """The reread queue of one mirror, with what it knows besides. See `RereadQueue`."""

    def gaps(self) -> list[str]:
        """Return the names of the gaps for which rereads were requested."""
        return list(self.fact(_GAPS, "[]"))

    def keep_gaps(self, names: Sequence[str]) -> None:
        """Store the names of the gaps for which rereads were requested."""
        self.keep({_GAPS: list(names)})

    def selected(self) -> dict[str, str | None]:
        """Return what is known about the channel's members, by object; see `selection.compared`."""
        return dict(self.fact(_SELECTED, "{}"))

    def keep_selected(self, known: Mapping[str, str | None]) -> None:
        """Store what is known about the channel's members, by object."""
        self.keep({_SELECTED: dict(known)})

    def rights(self) -> dict[str, Held]:
        """Return what is known about the user's right to see every record, by object."""
        found = self.fact(_RIGHTS, "{}")
        return {name: Held.from_json(each) for name, each in found.items()}

    def keep_rights(self, held: Mapping[str, Held], gaps: Sequence[str] = ()) -> None:
        """Store what is known about the user's right to see every record, by object.

        Args:
            held: What is known, of all objects.
            gaps: Names of gaps that an interruption of the right has caused. They need no reread of
                other objects (see *gaps*).
        """
        facts: dict[str, object] = {_RIGHTS: {name: each.to_json() for name, each in held.items()}}
        if gaps:
            facts[_GAPS] = list(dict.fromkeys([*self.gaps(), *gaps]))
        self.keep(facts)

    def losses(self, entity: str) -> list[Loss]:
        """Return the rows of an object that were deleted by absence, or parked, by step."""
        return [Loss(*each) for each in self.fact(_LOSSES, "{}").get(entity, ())]

    def keep_loss(self, entity: str, loss: Loss) -> None:
        """Store the rows that a step deletes by absence, or parks, before it changes the rows.

        Losses that no longer count are removed.
        """
        found = self.fact(_LOSSES, "{}")
        left = [each for each in kept(self.losses(entity), loss.at) if each.step != loss.step]
        found[entity] = [[each.step, each.at, each.rows] for each in (*left, loss)]
        self.keep({_LOSSES: found})
