"""Secrets do not appear in tables, query plans, configurations or process arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from sfpubsub.auth.oauth import session_provider
from sfpubsub.client.client import PubSubClient
from sfpubsub.config import Settings
from sfpubsub.spark import EventWriter
from tests.client.test_managed import TOPIC, orders
from tests.conftest import PATIENCE

SECRET = "planted-client-secret-4711"


def test_no_secret_is_in_the_table_the_plan_or_the_configuration(
    spark: SparkSession, run_emulator, tmp_path: Path, monkeypatch
):
    """Neither the table, its query plan nor the configuration contains the client secret or the
    access token.
    """
    emulator = run_emulator(tls=True)
    emulator.accounts.put_user("u")
    emulator.accounts.put_app("key", SECRET, run_as="u")
    emulator.publish(TOPIC, orders(3))
    for name, value in {
        "ENDPOINT": emulator.grpc_target,
        "CA_FILE": str(emulator.ca_file),
        "AUTH": "client-credentials",
        "LOGIN_URL": emulator.http_url,
        "CLIENT_ID": "key",
        "CLIENT_SECRET": SECRET,
    }.items():
        monkeypatch.setenv(f"SFPUBSUB_{name}", value)
    token = ""

    class Provider:
        def get_session(self, expired):
            nonlocal token
            session = session_provider(Settings.load()).get_session(expired)
            token = session.access_token
            return session

    settings = Settings.load()
    table = tmp_path / "orders"
    with (
        PubSubClient(Provider(), endpoint=settings.endpoint, ca_file=settings.ca_file) as client,
        client.subscribe(TOPIC, replay="earliest") as subscription,
    ):
        batch = subscription.next_batch(PATIENCE)
        with EventWriter(spark, table, topic=TOPIC) as writer:
            writer.write([batch])
    rows = spark.read.parquet(str(table))
    seen = {
        "the plan": rows._jdf.queryExecution().toString(),
        "the configuration": str(spark.sparkContext.getConf().getAll()),
        "the properties of the JVM": str(spark._jvm.java.lang.System.getProperties().toString()),
        "the rows": str(rows.collect()),
    }
    for file in table.rglob("*"):
        if file.is_file():
            seen[f"the file {file.name}"] = file.read_bytes().decode("latin-1")
    assert rows.count() == 3
    assert token
    for what, text in seen.items():
        assert SECRET not in text, what
        assert token not in text, what


SETTINGS = """
import sys
from pathlib import Path
from sfpubsub.spark import spark_session

settings = {
    "spark.hadoop.fs.s3a.secret.key": sys.argv[1],
    "spark.sql.catalog.lake.jdbc.password": sys.argv[1],
    "spark.hadoop.fs.s3a.endpoint": "seen",
}
with spark_session(settings=settings) as spark:
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    assert "fs.s3a.endpoint=seen" in command
    assert sys.argv[1] not in command
    assert spark.conf.get("spark.sql.catalog.lake.jdbc.password") == sys.argv[1]
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    assert hadoop.get("fs.s3a.secret.key") == sys.argv[1]
    assert sys.argv[1] not in spark.sql("SET").limit(1000).collect().__repr__()
print("hidden and in force")
"""


def test_a_secret_spark_setting_is_not_on_the_command_line_of_java():
    """A secret Spark setting takes effect without appearing on Java's command line, which any user
    can read.
    """
    found = subprocess.run(
        [sys.executable, "-c", SETTINGS, SECRET], capture_output=True, text=True, check=False
    )
    assert "hidden and in force" in found.stdout, found.stderr[-2000:]
    assert SECRET not in found.stderr
