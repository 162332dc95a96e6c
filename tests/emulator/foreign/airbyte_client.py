"""Run Airbyte's source for Salesforce, unchanged.

    python airbyte_client.py URL DIRECTORY OBJECT API

API is rest or bulk. Checks the connection, discovers the objects, reads the records of one in full,
and then the changes since the state of an incremental read. Prints a JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

import requests
from source_salesforce import run as source

url, directory, name, api = sys.argv[1:]
LOGIN = "https://login.salesforce.com"
send = requests.Session.send


def to_emulator(session, prepared, **options):
    """Send a request for Salesforce's login host, the only one that the source knows, to *url*."""
    prepared.url = prepared.url.replace(LOGIN, url)
    return send(session, prepared, **options)


requests.Session.send = to_emulator


def write(file: str, value: object) -> str:
    """Write a JSON file, and return its path."""
    path = Path(directory, f"{api}-{file}.json")
    path.write_text(json.dumps(value))
    return str(path)


def run(command: str, *options: str) -> list[dict]:
    """Run a command of the source, and return its messages."""
    sys.argv[1:] = [command, "--config", config, *options]
    real = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)  # the source writes to the descriptor
        try:
            with contextlib.suppress(SystemExit):
                source.run()
        finally:
            os.dup2(real, 1)
        file.seek(0)
        return [json.loads(line) for line in file if line.startswith(b"{")]


def read(mode: str, *state: str) -> tuple[list[str], list[dict]]:
    """Read the object; return the names of its records, and the states."""
    chosen = {
        "stream": stream,
        "sync_mode": mode,
        "destination_sync_mode": "append",
        "cursor_field": ["SystemModstamp"],
    }
    messages = run("read", "--catalog", write("catalog", {"streams": [chosen]}), *state)
    names = [item["record"]["data"]["Name"] for item in messages if item["type"] == "RECORD"]
    return sorted(names), [item["state"] for item in messages if item["type"] == "STATE"]


config = write(
    "config",
    {
        "auth_type": "Client",
        "client_id": "emulator",
        "client_secret": "emulator-secret",
        "refresh_token": "a refresh token",
        "start_date": "2020-01-01",
        "force_use_bulk_api": api == "bulk",
    },
)
checked = run("check")
status = next(item["connectionStatus"] for item in checked if item["type"] == "CONNECTION_STATUS")
catalog = next(item["catalog"] for item in run("discover") if item["type"] == "CATALOG")
stream = next(item for item in catalog["streams"] if item["name"] == name)
full, _ = read("full_refresh")
incremental, states = read("incremental")
again, _ = read("incremental", "--state", write("state", states[-1:]))
print(
    json.dumps(
        {
            "check": status["status"],
            "objects": sorted(item["name"] for item in catalog["streams"]),
            "full": full,
            "incremental": incremental,
            "again": again,
        }
    )
)
