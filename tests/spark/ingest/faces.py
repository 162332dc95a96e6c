"""The two faces of an ingest, which must do the same: the command, and the object in a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub.cli.ingest_report import summary_line
from sfpubsub.cli.main import exit_code
from sfpubsub.errors import SfPubSubError
from sfpubsub.spark.ingest.ingest import Ingest
from sfpubsub.spark.ingest.settings import IngestSettings
from sfpubsub.spark.raw.sources import Source
from tests.cli.test_cli import environment

OPTIONS = {"until_caught_up": "--once"}


@dataclass
class Outcome:
    """How a run ended."""

    code: int
    """The exit code of the command, or the one for the error that the object raised."""
    lines: list[dict[str, Any]]
    """What is known about each source."""
    said: str
    """What was logged or printed."""


class Command:
    """Runs the command in a process."""

    def __call__(
        self,
        emulator: Any,
        sources: Sequence[Source],
        to: Path,
        settings: IngestSettings,
        **environ: str,
    ) -> Outcome:
        """Read *sources* from the emulator, and write them to the table *to*."""
        arguments = ["--to", str(to)]
        for source in sources:
            arguments += [f"--{source.kind}", source.name]
        for each in fields(IngestSettings):
            value = getattr(settings, each.name)
            if value not in (None, False) and value != getattr(IngestSettings(), each.name):
                name = OPTIONS.get(each.name, f"--{each.name.replace('_', '-')}")
                arguments += [name] if value is True else [name, str(value)]
        done = subprocess.run(
            [sys.executable, "-m", "sfpubsub", "ingest", *arguments],
            env={**os.environ, **environment(emulator), **environ},
            capture_output=True,
            text=True,
            timeout=600,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return Outcome(done.returncode, lines, done.stderr)


class Object:
    """Runs an `Ingest` with the tests' session."""

    def __init__(self, spark: SparkSession, log: pytest.LogCaptureFixture) -> None:
        self._spark = spark
        self._log = log

    def __call__(
        self,
        emulator: Any,
        sources: Sequence[Source],
        to: Path,
        settings: IngestSettings,
        **environ: str,
    ) -> Outcome:
        """Read *sources* from the emulator, and write them to the table *to*."""
        self._log.clear()
        given = {**environment(emulator), **environ}
        options = {name.removeprefix("SFPUBSUB_").lower(): text for name, text in given.items()}
        job, code = Ingest(sources, to=to, settings=settings, options=options, spark=self._spark), 0
        try:
            with job:
                ended = job.run()
            assert list(ended) == list(sources)
        except SfPubSubError as error:
            code = exit_code(error)
        lines = [json.loads(summary_line(stream, job.table)) for stream in job.streams]
        return Outcome(code, lines, self._log.text)
