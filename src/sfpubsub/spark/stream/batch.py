"""Read topics once, from a position up to now, as a DataFrame.

Each time a query plan is executed, Spark starts a short-lived Python process next to the driver.
That process receives all events and returns them in partitions, so executors need no connection.
The events must fit into the driver's memory. For more events, use a stream or ``sfpubsub ingest``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.stream.options import SourceOptions
from sfpubsub.spark.stream.reader import EventStreamReader
from sfpubsub.types import StartPosition

if TYPE_CHECKING:
    import pyarrow as pa

    from sfpubsub.spark.stream.partition import EventPartition

# Maximum size of the events that one `spark.read` returns, in bytes. The planning process and then
# the driver, whose memory is 1 GB by default, each need twice as much memory.
MAX_FRAME_BYTES = 256 * 1024 * 1024


class EventReader(DataSourceReader):
    """Reads the events available now from one or more topics.

    It contains only the options, because Spark pickles it.

    Args:
        options: Options of the read. Without ``startingOffsets``, the read starts at the oldest
            retained event.

    Raises:
        ConfigurationError: A topic would start at ``latest``.
    """

    def __init__(self, options: SourceOptions) -> None:
        if StartPosition.latest() in (options.start, *options.starts.values()):
            raise ConfigurationError(
                "option startingOffsets is latest, so there is nothing to read in a batch: use "
                "earliest or a replay id, or use readStream"
            )
        self._options = replace(options, start=options.start or StartPosition.earliest())

    def partitions(self) -> list[InputPartition]:
        """Receive the events published before now, and return them in partitions.

        Raises:
            ConfigurationError: There are too many events for a batch read.
            ReplayIdRejectedError: A position is no longer retained.
            SfPubSubError: A subscription has failed.
        """
        stream = self._stream()
        found: list[InputPartition] = []
        try:
            stream.stop_at_now(keeps_position=False)
            limit = stream.getDefaultReadLimit()
            start, size = stream.initialOffset(), 0
            while (end := stream.latestOffset(start, limit)) != start:
                pieces = cast("list[EventPartition]", stream.partitions(start, end))
                size += sum(len(piece.data) for piece in pieces)
                if size > MAX_FRAME_BYTES:
                    raise ConfigurationError(
                        f"a batch read supports at most {MAX_FRAME_BYTES} bytes of events, but "
                        f"there are more on {', '.join(self._options.topics)} from startingOffsets "
                        f"to now: read them as a stream with trigger availableNow"
                    )
                found += pieces
                start = end
        finally:
            stream.stop()
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode a partition into rows. Spark calls it on executors."""
        return cast("EventPartition", partition).rows()

    def _stream(self) -> EventStreamReader:
        return EventStreamReader(self._options)
