"""Updates for open pages, by server-sent events.

Each open page has a stream, which renders the page's content again and sends only the parts that
have changed. It does so when `Bells` reports a change of a topic, but at most five times a second.
Otherwise it does so about once a second, because `Bells` does not report requests, commits or jumps
of the clock. Pages that are not open cause no work.
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
"""Seconds after which content is rendered again if no topic has changed."""

_PAUSE_S = 0.2
"""Shortest time between two renderings, in seconds; nobody could read faster updates."""

_RETRY_MS = 1000
"""Milliseconds after which a browser reconnects when a stream has ended."""


@dataclass(frozen=True)
class PageUpdate:
    """The current content of a page.

    Attributes:
        places: Content to replace, by the id of its element.
        added: New entries, oldest first, to insert at the top of the list `into`.
        into: Id of the list's element.
        mark: Identifies the last entry of `added`. A browser sends the mark when it reconnects.
    """

    places: Mapping[str, Markup]
    added: Sequence[Markup] = ()
    into: str = ""
    mark: str = ""


class Live:
    """The stream of updates for one open page. One thread iterates over it; `end` is thread-safe.

    Args:
        look: Returns the current content, with the entries added after a given mark.
        mark: The mark for the first call of `look`.
        bells: Wakes the stream when the org changes.
        keys: The keys of `bells` that cause an update.
    """

    def __init__(
        self, look: Callable[[str], PageUpdate], mark: str, bells: Bells, keys: Sequence[Hashable]
    ) -> None:
        self._look = look
        self._mark = mark
        self._bells = bells
        self._keys = keys
        self._stir = threading.Event()
        self._over = threading.Event()

    def end(self) -> None:
        """End the stream. Can be called from any thread."""
        self._over.set()
        self._stir.set()

    def __iter__(self) -> Iterator[str]:
        """Yield server-sent events. If nothing has changed, yield a comment instead, because
        sending it reveals whether the browser has disconnected.
        """
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
    # A message must not contain line ends; JSON text has none.
    return f"event: {kind}\ndata: {json.dumps({'id': place, 'html': content})}\n\n"


def shown_time(at: float) -> str:
    """Return a time (seconds since the epoch) as the pages show it: in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
