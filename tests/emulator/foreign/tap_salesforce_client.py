"""Run tap-salesforce, unchanged: its discovery, and a sync of one object.

    python tap_salesforce_client.py URL API_TYPE OBJECT DIRECTORY

Prints a JSON list of the names of the records that it wrote.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import requests
import tap_salesforce

url, api_type, name, directory = sys.argv[1:]
LOGIN = "https://login.salesforce.com"
request = requests.Session.request


def to_emulator(session, method, address, **options):
    """Send a request for Salesforce's login host, the only one that the tap knows, to *url*."""
    return request(session, method, address.replace(LOGIN, url), **options)


requests.Session.request = to_emulator


def run(*options: str) -> str:
    """Run the tap's program, and return what it writes."""
    sys.argv[1:] = ["--config", str(Path(directory, "config.json")), *options]
    with contextlib.redirect_stdout(io.StringIO()) as written:
        tap_salesforce.main()
    return written.getvalue()


settings = {
    "client_id": "emulator",
    "client_secret": "emulator-secret",
    "refresh_token": "a refresh token",
    "start_date": "2020-01-01T00:00:00Z",
    "api_type": api_type,
    "select_fields_by_default": "true",
}
Path(directory, "config.json").write_text(json.dumps(settings))
catalog = json.loads(run("--discover"))
for stream in catalog["streams"]:
    stream["metadata"] = [
        {**item, "metadata": {**item["metadata"], "selected": stream["stream"] == name}}
        if item["breadcrumb"] == []
        else item
        for item in stream["metadata"]
    ]
Path(directory, "catalog.json").write_text(json.dumps(catalog))
lines = run("--properties", str(Path(directory, "catalog.json"))).splitlines()
messages = [json.loads(line) for line in lines]
print(json.dumps([row["record"]["Name"] for row in messages if row["type"] == "RECORD"]))
