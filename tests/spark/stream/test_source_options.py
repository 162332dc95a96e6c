"""The options of the streaming source: spelled as Spark's, refused when they are of no use."""

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


def test_what_is_not_said_has_the_default_of_spark_sources():
    """As with other sources of Spark: latest, and lost data is a failure."""
    options = parse()
    assert options.start_of(TOPIC) == StartPosition.latest()
    assert options.fail_on_data_loss


def test_names_are_taken_in_any_case():
    """Spark gives some of them back in lower case."""
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
def test_an_option_that_cannot_be_meant_is_an_error(options, message):
    """A mistyped option must not be a default in disguise."""
    with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")):
        parse(**options)


def test_several_topics_are_a_list_and_may_begin_apart():
    """Sorted, as offsets are; an id belongs to one of them."""
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
def test_a_credential_is_refused_and_not_repeated(name):
    """Options travel to executors and into the event log, so no credential may be one."""
    with pytest.raises(ConfigurationError, match="looks like a credential") as caught:
        parse(**{name: "hunter2-planted"})
    assert "planted" not in str(caught.value)
    assert "configFile" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [SECRET, "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiIzTVZHOSJ9.sig", "-----BEGIN PRIVATE KEY-----\nMII"],
)
def test_a_credential_in_another_option_is_refused_too(value):
    """A token pasted into the wrong place is still a token."""
    with pytest.raises(ConfigurationError, match="looks like a credential") as caught:
        parse(profile=value)
    assert value not in str(caught.value)


@pytest.mark.parametrize("version", ["3.5.1", "4.0.1", "4.1.2"])
def test_an_older_pyspark_is_named(version):
    """The reason is the version, not a name that is missing in it."""
    with pytest.raises(ConfigurationError, match=f"4.2 or newer, but this is {version}"):
        check_version(version)


def test_this_and_newer_versions_are_taken():
    """Development versions included."""
    for version in ("4.2.0", "4.3.0.dev1", "5.0.0"):
        check_version(version)


def test_the_schema_is_that_of_the_raw_table(spark):
    """What Spark makes of the raw table's rows, names, types and nullability."""
    source = PubSubDataSource({"topic": TOPIC})
    from sfpubsub.spark.stream.partition import SOURCE_SCHEMA

    wanted = spark.createDataFrame(SOURCE_SCHEMA.empty_table()).schema
    assert source.schema().simpleString() == wanted.simpleString()
    assert all(field.nullable and field.metadata["comment"] for field in source.schema())
    assert source.name() == "sfpubsub"
