"""Fresh orgs for the tests of a process: one emulator that returns to its first state."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from sfpubsub.emulator.faults import FaultPlan
from sfpubsub.emulator.org.problems import EmulatorProblem
from sfpubsub.emulator.server import EmulatorServer

_SNAPSHOT = "fresh"


class FreshOrgs:
    """Keeps the emulator of the last test, for the next test with the same options.

    A test with a clock or data directory of its own has an emulator of its own.
    """

    def __init__(self) -> None:
        self._options: dict[str, Any] = {}
        self._org: EmulatorServer | None = None
        self._closing = contextlib.ExitStack()

    @contextlib.contextmanager
    def fresh(self, options: Mapping[str, Any]) -> Iterator[EmulatorServer]:
        """Return an org that contains nothing from other tests, for the `with` statement.

        Args:
            options: Arguments of `EmulatorServer`.

        Raises:
            EmulatorProblem: The emulator cannot start.
        """
        if options.keys() & {"clock", "data_dir"}:
            with contextlib.ExitStack() as stack:
                if "data_dir" not in options:
                    options = {**options, "data_dir": stack.enter_context(_directory())}
                yield stack.enter_context(EmulatorServer(**options))
            return
        kept = {name: value for name, value in options.items() if name != "faults"}
        faults = options.get("faults") or FaultPlan()
        yield self._restored(kept, faults) or self._started(kept, faults)

    def close(self) -> None:
        """Stop the emulator that is kept."""
        self._org = None
        self._closing.close()

    def _restored(self, options: Mapping[str, Any], faults: FaultPlan) -> EmulatorServer | None:
        if self._org is None or options != self._options:
            return None
        try:
            self._org.restore(_SNAPSHOT, faults=faults)
        except EmulatorProblem:  # the test before stopped it
            return None
        return self._org

    def _started(self, options: Mapping[str, Any], faults: FaultPlan) -> EmulatorServer:
        self.close()
        directory = self._closing.enter_context(_directory())
        org = EmulatorServer(**options, data_dir=directory, faults=faults)
        self._org = self._closing.enter_context(org)
        self._options = dict(options)
        self._org.save(_SNAPSHOT)
        return self._org


def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="salesforce-org-")
