"""``sfpubsub mirror plan``: what a mirror will cost in API calls, and how long first reads take.

This module asks the org for what `plan.costs` needs. It starts no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sfpubsub.cli.mirror_tools import intervals_options
from sfpubsub.cli.results import print_records
from sfpubsub.cli.service import connected_client, service_options
from sfpubsub.cli.spark_options import require_spark
from sfpubsub.config import Settings
from sfpubsub.spark.ingest.members import ALL_CHANGES, ChannelMembers
from sfpubsub.spark.ingest.selection import Selection, event_of

if TYPE_CHECKING:
    from sfpubsub.client.client import PubSubClient
    from sfpubsub.rest import OrgReader
    from sfpubsub.spark.mirror.plan import Facts
    from sfpubsub.spark.mirror.settings import By


@click.command("plan")
@click.argument("objects", metavar="OBJECT...", nargs=-1, required=True)
@intervals_options
@service_options
def plan(
    objects: tuple[str, ...],
    by: By,
    bulk_from: int,
    refresh_formulas: float,
    drift: float,
    poll: float,
    sweep: float,
    **service: str | None,
) -> None:
    """Print what a mirror of each OBJECT would cost a day, with the same options as `run`.

    The last record is what all objects cost together, beside their own costs: checks of the
    user's rights, and looks at the channel. The time of the first read is an estimate, with 2,000
    records a second. Events cost no API calls.
    """
    require_spark("sfpubsub mirror plan", "pandas")
    # Imported here, because these modules load pyspark and pyarrow.
    from sfpubsub.auth.http import HttpClient
    from sfpubsub.rest import OrgReader
    from sfpubsub.spark.mirror.plan import costs
    from sfpubsub.spark.mirror.settings import MirrorSettings

    settings = MirrorSettings(
        by=by,
        bulk_from=bulk_from,
        refresh_formulas=refresh_formulas,
        drift=drift,
        poll=poll,
        sweep=sweep,
    )
    with connected_client(**service) as client:
        http = HttpClient.from_settings(Settings.load(service))
        reader = OrgReader(client.sessions, http=http)
        selection = ChannelMembers(client.sessions, http, topic=ALL_CHANGES)()
        before = reader.calls
        reader.grants(objects)
        rights = reader.calls - before
        facts = [_facts(name, reader, client, selection) for name in objects]
        found = costs(facts, settings, reader.limits().most, rights, 2 + len(selection.members))
    print_records(found, "no objects")


def _facts(name: str, reader: OrgReader, client: PubSubClient, selection: Selection) -> Facts:
    """Ask the org for what the costs of an object depend on."""
    from sfpubsub.avro.columns import columns_of
    from sfpubsub.avro.typed_rows import Plan
    from sfpubsub.rest.describing import STAMP
    from sfpubsub.spark.mirror.plan import Facts
    from sfpubsub.spark.mirror.reading import LONGEST_QUERY
    from sfpubsub.spark.mirror.rights import check_object
    from sfpubsub.spark.records.columns import Columns

    check_object(reader, name)
    description = reader.describe(name)
    columns, has_events = Columns.of(description), selection.whole(name) is not None
    if has_events:
        schema = client.get_schema(client.get_topic(f"/data/{event_of(name)}").schema_id)
        events = columns_of(schema.schema_json)
        columns = columns.with_events(Plan({schema.schema_id: schema.schema_json}, events))
    page = next(iter(reader.query(f"SELECT COUNT() FROM {name}", all_rows=True)))  # noqa: S608
    return Facts(
        name,
        page.total,
        has_events,
        len(columns.unreported),
        description.field(STAMP) is not None,
        len(", ".join(columns.selected)) >= LONGEST_QUERY,
    )
