"""The npm package salesforce-pubsub-api-client as a reference client, if node is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.runs import Job, Sample
from benchmarks.server import cache

PROGRAM = Path(__file__).with_name("npm_client.mjs")
VERSION = "5.5.2"
AVRO_VERSION = "1.12.1"  # later versions need a package that they do not declare
LONGEST_INSTALL = 300  # seconds
LONGEST_RUN = 180  # seconds


def installed(*, may_install: bool = True) -> tuple[Path | None, str]:
    """Return the directory that contains the package, or None with the reason.

    Args:
        may_install: Whether to install the package if it is missing.
    """
    directory = cache(f"npm-{VERSION}-{AVRO_VERSION}")
    done = directory / "done"
    if shutil.which("node") is None or shutil.which("npm") is None:
        return None, "node or npm is not installed"
    if done.exists():
        return directory, ""
    if not may_install:
        return None, "the npm package is not installed"
    directory.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save"]
    packages = [f"salesforce-pubsub-api-client@{VERSION}", f"avro-js@{AVRO_VERSION}"]
    try:
        result = subprocess.run(
            [*command, "--prefix", str(directory), *packages],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=LONGEST_INSTALL,
        )
    except subprocess.TimeoutExpired:
        return None, f"npm install took more than {LONGEST_INSTALL} s"
    if result.returncode:
        return None, f"npm install failed: {result.stderr.strip()}"
    done.touch()
    return directory, ""


def receive(directory: Path, job: Job) -> Sample:
    """Do a job in a new process, because closing this client does not end its streams."""
    result = subprocess.run(
        ["node", "--no-deprecation", str(PROGRAM), json.dumps(job.to_json())],
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LONGEST_RUN,
        check=True,
    )
    return Sample(**json.loads(result.stdout))
