"""What a job writes, plans and configures has no secret in it: a planted one is searched for."""

from __future__ import annotations

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
    """From a sign-in to rows: neither the app's secret nor the token it got."""
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
