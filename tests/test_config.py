"""Settings: where they come from, and what is refused."""

from __future__ import annotations

import pytest

from sfpubsub.config import Limits, Settings, Timings
from sfpubsub.errors import ConfigurationError


def test_options_go_before_the_environment_and_that_before_defaults():
    """The same setting has one name in both."""
    env = {"SFPUBSUB_ENDPOINT": "env:1", "SFPUBSUB_CA_FILE": "env.pem", "SFPUBSUB_INSECURE": ""}
    settings = Settings.load({"endpoint": "option:1", "ca_file": None}, env)
    assert (settings.endpoint, settings.ca_file) == ("option:1", "env.pem")
    assert Settings.load({}, {}).endpoint == "api.pubsub.salesforce.com:7443"


def test_an_unknown_way_to_sign_in_is_refused():
    """It names the ways that there are."""
    with pytest.raises(ConfigurationError, match="token"):
        Settings.load({}, {"SFPUBSUB_AUTH": "telepathy"})


def test_settings_do_not_show_the_token():
    """A printed settings object is safe."""
    settings = Settings.load({}, {"SFPUBSUB_ACCESS_TOKEN": "very-secret"})
    assert "very-secret" not in repr(settings)


@pytest.mark.parametrize("name", ["max_pending_count", "max_bytes", "max_unacked"])
def test_a_limit_of_nothing_is_refused(name: str):
    """A subscription that may hold nothing would stand still."""
    with pytest.raises(ValueError, match=name):
        Limits(**{name: 0})


def test_the_times_keep_the_services_rules():
    """The client acts before the service does."""
    times = Timings()
    assert times.reserve < 60
    assert times.commit_interval + times.commit_timeout < 1800
    assert times.keepalive + times.keepalive_margin > 270
    assert times.slot_timeout > 19 * 60
