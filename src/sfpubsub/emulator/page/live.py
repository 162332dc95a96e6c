"""What changes while one looks, by server-sent events.

A stream looks again when one of its topics rings, and once a second for everything else (credit,
commits, the clock), and sends what differs from what it sent last. So a page that nobody looks at
costs nothing, and a flood of events costs a page some five looks a second.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sfpubsub.emulator.org.mailbox import Bells
from sfpubsub.emulator.page.markup import Markup

_LOOK_S = 1.0
"""How often a page looks for what no bell tells."""

_PAUSE_S = 0.2
"""Shortest time between two looks: faster than anybody reads."""

_RETRY_MS = 1000
"""When a browser comes again after a stream has ended."""


@dataclass(frozen=True)
class News:
    """What a page shows now.

    Attributes:
        places: Content by the id of its element.
        added: What comes in front of what stands in `into`, oldest first.
        into: Id of an element.
        mark: Where `added` ends; comes back when the browser does.
    """

    places: Mapping[str, Markup]
    added: Sequence[Markup] = ()
    into: str = ""
    mark: str = ""


class Live:
    """One stream of a page. Iterated by one thread; `end` may be called from any.

    Args:
        look: What the page shows now, added things after a mark.
        mark: The first mark.
        bells: Of the bus.
        keys: What rings.
    """

    def __init__(
        self, look: Callable[[str], News], mark: str, bells: Bells, keys: Sequence[Hashable]
    ) -> None:
        self._look = look
        self._mark = mark
        self._bells = bells
        self._keys = keys
        self._stir = threading.Event()
        self._over = threading.Event()

    def end(self) -> None:
        """Let the iteration end."""
        self._over.set()
        self._stir.set()

    def __iter__(self) -> Iterator[str]:
        """Yield messages as they go over the wire; blank ones to see whether somebody is there."""
        shown: dict[str, Markup] = {}
        self._bells.watch(self._keys, self._stir.set)
        try:
            yield f"retry: {_RETRY_MS}\n\n"
            while not self._over.is_set():
                self._stir.clear()
                yield "".join(self._messages(shown)) or ":\n\n"
                self._over.wait(_PAUSE_S)
                self._stir.wait(_LOOK_S)
        finally:
            self._bells.unwatch(self._stir.set)

    def _messages(self, shown: dict[str, Markup]) -> Iterator[str]:
        news = self._look(self._mark)
        for place, content in news.places.items():
            if shown.get(place) != content:
                shown[place] = content
                yield _message("put", place, content)
        if news.added:
            self._mark = news.mark
            content = Markup("".join(reversed(news.added)))
            yield f"id: {news.mark}\n" + _message("add", news.into, content)


def _message(kind: str, place: str, content: str) -> str:
    # JSON has no line ends, which a message must not have.
    return f"event: {kind}\ndata: {json.dumps({'id': place, 'html': content})}\n\n"


def shown_time(at: float) -> str:
    """A time as pages show it: UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
