"""``sfpubsub schema``: show a schema."""

from __future__ import annotations

import json
import re

import click

from sfpubsub.cli.params import full_names
from sfpubsub.cli.render import json_line
from sfpubsub.cli.service import connected_client, service_options
from sfpubsub.errors import SchemaNotFoundError

# Suffixes of event and channel names, which schema ids do not have.
_EVENT = re.compile(r"__e$|__chn$|ChangeEvents?$")


@click.command()
@click.argument("id_or_topic")
@service_options
def schema(id_or_topic: str, **service: str | None) -> None:
    """Show an Avro schema, by schema id or by topic."""
    with connected_client(None, **service) as client:
        schema_id = id_or_topic
        if id_or_topic.startswith("/"):  # schema ids are base64url, without a slash
            schema_id = client.get_topic(id_or_topic).schema_id
            if not schema_id:
                raise SchemaNotFoundError(
                    f"{id_or_topic} has several event types: use the topic of one event type, or "
                    f"the schema id of an event"
                )
        try:
            info = client.get_schema(schema_id)
        except SchemaNotFoundError as error:
            if not _EVENT.search(id_or_topic):
                raise
            full = " or ".join(full_names(id_or_topic))
            raise SchemaNotFoundError(
                f"{error}; did you mean the topic {full}?",
                error_code=error.error_code,
                rpc_id=error.rpc_id,
            ) from error
        document = {"schema_id": info.schema_id, "schema": json.loads(info.schema_json)}
        click.echo(json_line(document), nl=False)
