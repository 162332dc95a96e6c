"""Which process an object was made in. A forked child has a copy of it, and none of its threads."""

from __future__ import annotations

import os

# How often this process's line was forked: looked at with each response, where to ask the system
# for the process would be the costliest line.
_forks = 0


def _in_child() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_in_child)


class Home:
    """The process that made this object."""

    def __init__(self) -> None:
        self.pid: int = os.getpid()
        self._forks = _forks

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return self._forks == _forks
