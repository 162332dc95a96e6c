"""Detects use after a fork: a forked child has copies of all objects, but not their threads."""

from __future__ import annotations

import os

from sfpubsub.errors import LocalProtocolError

# Number of forks between the first process and this one. It is compared on every response, because
# calling os.getpid() is more expensive.
_forks = 0


def _in_child() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_in_child)


# Maximum seconds of one wait of an application's thread. Python handles a signal that arrives just
# before a wait, or in another thread, only after the wait: without this limit, Ctrl-C would have no
# effect until something else ends the wait.
LONGEST_WAIT = 1.0


def one_wait(rest: float | None) -> float:
    """Return how many seconds to wait before looking again, if *rest* are left; None: no limit."""
    return LONGEST_WAIT if rest is None else min(rest, LONGEST_WAIT)


class CreatorProcess:
    """Identifies the process that created this object."""

    def __init__(self) -> None:
        self.pid: int = os.getpid()
        self._forks = _forks

    @property
    def is_current(self) -> bool:
        """Whether the current process created this object."""
        return self._forks == _forks

    def check(self, title: str) -> None:
        """Check that the current process created this object.

        A forked child process does not have the object's threads: no call would make progress, and
        a lock that another thread held at the fork would never be released.

        Args:
            title: Description of the object's owner for the message, such as ``the client``.

        Raises:
            LocalProtocolError: The current process is a fork of the one that created this object.
        """
        if not self.is_current:
            raise LocalProtocolError(
                f"{title} belongs to process {self.pid}, which forked this process: create a new "
                f"client after the fork"
            )
