"""Tests that each extra of the package installs versions that work together.

The installations use none of the constraints that this project's own environment has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from sfpubsub.spark.runtime.java import find_java_home

ROOT = Path(__file__).parent.parent

# Seconds for an installation; PySpark is a download of 450 MB, which pip then builds.
INSTALLATION = 1800

# Seconds for starting a session with its jars, one write, and one read of the table.
WRITE = 600

# Run in the repository, to find the sample events; sfpubsub is imported from the wheel.
WRITES = """
import json, sys
from importlib.metadata import version
import pyspark
import sfpubsub
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark import EventWriter, spark_session
from tests.spark.sample_events import TOPIC, batch_of

format_, table = sys.argv[1:]
with spark_session(format=format_) as spark:
    with EventWriter(spark, table, format=format_, topic=TOPIC) as writer:
        written = writer.write(batch_of(range(3))).rows
    found = spark.read.format(format_).load(table).count()
try:
    from sfpubsub.spark import PubSubDataSource
    source = PubSubDataSource.name()
except ConfigurationError as error:
    source = str(error)
print(json.dumps({
    "home": sfpubsub.__file__, "pyspark": pyspark.__version__, "pandas": version("pandas"),
    "written": written, "found": found, "source": source,
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package's wheel, as it would be uploaded."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", directory, ROOT]
    subprocess.run(command, check=True, timeout=INSTALLATION)
    (built,) = directory.glob("*.whl")
    return built


@pytest.mark.slow  # takes minutes for each extra
@pytest.mark.parametrize(
    ("extra", "format_", "pyspark", "source"),
    [
        ("spark", "parquet", "4.2.", "sfpubsub"),
        ("delta", "delta", "4.2.", "sfpubsub"),
        ("iceberg", "iceberg", "4.1.", "needs PySpark 4.2 or newer, but this is 4.1."),
        ("all", "delta", "4.2.", "sfpubsub"),
    ],
)
def test_an_extra_installs_versions_that_work_together(
    wheel: Path, tmp_path: Path, extra: str, format_: str, pyspark: str, source: str
):
    """In a new environment with only the wheel and an extra, Spark starts and can write a table.

    The PubSubDataSource works if the extra's PySpark is new enough; otherwise, its error says so.
    """
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]"]
    subprocess.run(install, check=True, timeout=INSTALLATION, cwd=tmp_path)
    done = subprocess.run(
        [python, "-c", WRITES, format_, tmp_path / "table"],
        env={**os.environ, "JAVA_HOME": str(find_java_home())},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=WRITE,
    )
    said = json.loads(done.stdout)
    print(extra, said)
    assert said["home"].startswith(str(tmp_path))
    assert said["pyspark"].startswith(pyspark)
    assert (said["written"], said["found"]) == (3, 3)
    assert source in said["source"]
