"""Options of the streaming source are named like those of Spark, and checked strictly."""

from __future__ import annotations

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.stream.datasource import PubSubDataSource, check_version
from sfpubsub.spark.stream.options import SourceOptions
from sfpubsub.types import ReplayId, StartPosition

TOPIC = "/event/Order_Event__e"
SECRET = "00D5g000000AbCd!AQ4AQFplanted_secret_value"


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"topic": TOPIC, **options})


def test_options_have_the_defaults_of_spark_sources():
    """As in other Spark sources, a query starts at latest, and data loss makes it fail."""
    options = parse()
    assert options.start_of(TOPIC) == StartPosition.latest()
    assert options.fail_on_data_loss


def test_option_names_are_case_insensitive():
    """Spark passes some names on in lower case, so all spellings are accepted."""
    options = parse(STARTINGOFFSETS="earliest", maxoffsetspertrigger="7", failOnDataLoss="FALSE")
    assert options.start_of(TOPIC) == StartPosition.earliest()
    assert (options.max_events, options.fail_on_data_loss) == (7, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "Order_Event__e"}, "option topic"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"maxEventsPerTrigger": "7"}, "did you mean maxOffsetsPerTrigger?"),
        ({"path": "/x"}, "no option 'path'"),
        ({"startingOffsets": "yesterday"}, "startingOffsets is 'yesterday'"),
        ({"maxOffsetsPerTrigger": "0"}, "must be from 1 to"),
        ({"maxOffsetsPerTrigger": "many"}, "must be from 1 to"),
        ({"maxBytesPerTrigger": "0"}, "must be from 1 to"),
        ({"topics": f"{TOPIC},/data/ChangeEvents"}, "use only one of"),
        ({"startingOffsets": '{"/event/Other__e": "latest"}'}, "not one of the topics"),
        ({"startingOffsets": '{"/event/Other__e"'}, "is not valid JSON"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"idleTimeout": "-1"}, "must be a number of seconds"),
        ({"endpoint": "localhost:7443"}, "connection setting"),
    ],
)
def test_an_unknown_or_invalid_option_is_rejected(options, message):
    """A mistyped option raises an error instead of silently leaving the default in force."""
    with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")):
        parse(**options)


def test_several_topics_may_have_different_starts():
    """Topics are separated by commas, deduplicated and sorted.

    If there are several, startingOffsets must name the topic to which a replay id belongs.
    """
    both = {"topics": f"{TOPIC}, /data/ChangeEvents,{TOPIC}"}
    options = SourceOptions.parse(both | {"startingOffsets": f'{{"{TOPIC}": "00ff"}}'})
    assert options.topics == ("/data/ChangeEvents", TOPIC)
    assert options.start_of(TOPIC) == StartPosition.after(ReplayId(b"\x00\xff"))
    assert options.start_of("/data/ChangeEvents") == StartPosition.latest()
    with pytest.raises(ConfigurationError, match="valid for one topic only"):
        SourceOptions.parse(both | {"startingOffsets": "00ff"})
    with pytest.raises(ConfigurationError, match="separated by commas"):
        SourceOptions.parse({"topics": f"{TOPIC};/data/x, y"})


@pytest.mark.parametrize(
    "name",
    ["accessToken", "access_token", "SFPUBSUB_ACCESS_TOKEN", "clientSecret", "password",
     "sessionId", "privateKey", "refresh.token", "apiKey", "jwt"],
)  # fmt: skip
def test_a_credential_as_an_option_is_rejected_and_not_repeated(name):
    """A credential given as an option is rejected, because Spark stores options in its event log.

    The error suggests configFile and does not repeat the value.
    """
    with pytest.raises(ConfigurationError, match="looks like a credential") as caught:
        parse(**{name: "hunter2-planted"})
    assert "planted" not in str(caught.value)
    assert "configFile" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [SECRET, "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiIzTVZHOSJ9.sig", "-----BEGIN PRIVATE KEY-----\nMII"],
)
def test_a_credential_in_the_value_of_another_option_is_rejected(value):
    """A token or private key is recognized by its form, and the error does not repeat it."""
    with pytest.raises(ConfigurationError, match="looks like a credential") as caught:
        parse(profile=value)
    assert value not in str(caught.value)


@pytest.mark.parametrize("version", ["3.5.1", "4.0.1", "4.1.2"])
def test_an_older_pyspark_is_rejected(version):
    """The error names the required and the installed version, rather than a missing class."""
    with pytest.raises(ConfigurationError, match=f"4.2 or newer, but this is {version}"):
        check_version(version)


def test_newer_pyspark_versions_are_accepted():
    """PySpark 4.2, newer versions and development versions are accepted."""
    for version in ("4.2.0", "4.3.0.dev1", "5.0.0"):
        check_version(version)


def test_the_source_has_the_schema_of_the_raw_table(spark):
    """The source has the column names and types of the raw table, all nullable and commented."""
    source = PubSubDataSource({"topic": TOPIC})
    from sfpubsub.spark.stream.partition import SOURCE_SCHEMA

    wanted = spark.createDataFrame(SOURCE_SCHEMA.empty_table()).schema
    assert source.schema().simpleString() == wanted.simpleString()
    assert all(field.nullable and field.metadata["comment"] for field in source.schema())
    assert source.name() == "sfpubsub"
