"""Tests of the settings: their sources, their validation, and that secrets are not shown."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path

import pytest

from sfpubsub.cli.service import OPTIONS
from sfpubsub.config import Limits, Settings, Timings, network
from sfpubsub.config.settings import AUTH_WAYS, SECRETS
from sfpubsub.config.sources import ENVIRONMENT_PREFIX, NOT_SETTINGS, from_environment
from sfpubsub.errors import ConfigurationError

ROOT = Path(__file__).parent.parent
NAMES = [item.name for item in Settings().describe()]


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a settings file, by default with mode 0600, and returns its
    path.
    """

    def write(text: str, mode: int = 0o600) -> str:
        path = tmp_path / "sfpubsub.toml"
        path.touch()
        path.chmod(mode)
        path.write_text(text)
        return str(path)

    return write


def test_options_override_the_environment_which_overrides_the_file(file):
    """A setting comes from the first of these sources that has a value other than "" or None."""
    config = file('endpoint = "file:1"\nca_file = "/file.pem"\nproxy = "http://file:1"\n')
    env = {
        "SFPUBSUB_CONFIG": config,
        "SFPUBSUB_ENDPOINT": "env:1",
        "SFPUBSUB_CA_FILE": "/env.pem",
        "SFPUBSUB_PROXY": "",
    }
    settings = Settings.load({"endpoint": "option:1", "ca_file": None, "proxy": ""}, env)
    assert (settings.endpoint, settings.ca_file, settings.proxy) == (
        "option:1",
        "/env.pem",
        "http://file:1",
    )
    assert Settings.load({}, {}).endpoint == "api.pubsub.salesforce.com:7443"


def test_each_setting_knows_where_it_comes_from(file):
    """describe() names the option, variable or key of the file from which each value comes, or
    "default".
    """
    config = file('login_url = "https://a.my.salesforce.com"\n[profile.uat]\nclient_id = "k"\n')
    env = {"SFPUBSUB_CLIENT_SECRET": "hush", "SFPUBSUB_PROFILE": "uat"}
    settings = Settings.load({"config": config, "auth": "client-credentials"}, env)
    shown = {item.name: (item.value, item.source) for item in settings.describe()}
    assert shown["auth"] == ("client-credentials", "option --auth")
    assert shown["client_secret"] == ("***", "environment SFPUBSUB_CLIENT_SECRET")
    assert shown["login_url"] == ("https://a.my.salesforce.com", f"{config}: login_url")
    assert shown["client_id"] == ("k", f"{config}: profile.uat.client_id")
    assert shown["password"] == ("", "default")
    assert shown["ping_interval"] == ("30", "default")
    assert "hush" not in str(settings.describe())


def test_a_profile_overrides_the_top_level_of_the_file(file):
    """The chosen profile overrides the file's top-level settings, and other profiles have no
    effect.
    """
    config = file(
        'endpoint = "top:1"\nauth = "jwt"\n'
        '[profile.a]\nendpoint = "a:1"\n[profile.b]\nendpoint = "b:1"\nusername = "b"\n'
    )
    chosen = Settings.load({"config": config, "profile": "a"}, {})
    assert (chosen.endpoint, chosen.auth, chosen.username) == ("a:1", "jwt", "")
    assert Settings.load({"config": config}, {}).endpoint == "top:1"


def test_an_empty_value_in_a_profile_counts_as_not_set(file):
    """If a profile sets a setting to an empty string, the file's top-level value applies."""
    config = file('endpoint = "top:1"\n[profile.a]\nendpoint = ""\n')
    assert Settings.load({"config": config, "profile": "a"}, {}).endpoint == "top:1"


def test_a_file_may_begin_with_a_byte_order_mark(file):
    """A settings file that an editor saved with a byte order mark is read normally."""
    config = file('\ufeffendpoint = "top:1"\n')
    assert Settings.load({"config": config}, {}).endpoint == "top:1"


def test_a_tilde_is_expanded_in_every_path(tmp_path, monkeypatch):
    """`~` is expanded wherever a path is set, even in --config=~/x, which shells leave unexpanded.

    An unknown user after `~` raises an error.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "s.toml").write_text("private_key_file = 'key.pem'")
    settings = Settings.load({"config": "~/s.toml"}, {"SFPUBSUB_CA_FILE": "~/ca.pem"})
    assert settings.ca_file == str(tmp_path / "ca.pem")
    assert settings.private_key_file == str(tmp_path / "key.pem")
    with pytest.raises(ConfigurationError, match="--config is not a valid path"):
        Settings.load({"config": "~nobody-here/s.toml"}, {})


@pytest.mark.parametrize(
    ("text", "profile", "message"),
    [
        ('enpoint = "x:1"', None, r"enpoint is not a setting: did you mean endpoint\?"),
        ("[profile.a]\nclient-id = 'k'", None, r"profile\.a\.client-id .* client_id\?"),
        ("[profile.prod]", "prd", r"no \[profile\.prd\]: did you mean prod\?"),
        ("[profiles.prod]", None, "profiles is not a setting"),
        ("profile = 'prod'", None, r"\[profile\.production\]"),
        ("[profile]\nprod = 'x'", None, r"\[profile\.production\]"),
        ("insecure = true", None, "insecure must be a string or a number"),
        ("client_id = ['k']", None, "client_id must be a string"),
        ("endpoint = ", None, "is not valid TOML at"),
        ('endpoint = "a"\npassword = "b\n', None, "is not valid TOML at line 2, column"),
        ("config = 'other.toml'", None, "config is not a setting"),
        (f"client_id = {'[' * 100_000}", None, "is not valid TOML"),
        ("ca_file = '~nobody-here/ca.pem'", None, "ca_file is not a valid path"),
        ('ca_file = "a\\u0000b"', None, "ca_file is not a valid path"),
    ],
)
def test_an_invalid_settings_file_is_rejected(file, text, profile, message):
    """An unknown setting or an invalid value in a file raises an error that suggests a
    correction.
    """
    with pytest.raises(ConfigurationError, match=message):
        Settings.load({"config": file(text), "profile": profile}, {})


def test_the_error_of_a_broken_file_does_not_show_its_text(file):
    """A file that is not valid TOML raises an error that does not include the parser's own error,
    as that could show a secret.
    """
    config = file('client_secret = "hush\n')
    with pytest.raises(ConfigurationError) as caught:
        Settings.load({"config": config}, {})
    assert caught.value.__context__ is None
    assert "hush" not in str(caught.value)


def test_a_missing_settings_file_is_reported(tmp_path):
    """A missing settings file is reported with its path.

    A profile without a file is an error too.
    """
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml cannot be read"):
        Settings.load({"config": str(tmp_path / "nowhere.toml")}, {})
    with pytest.raises(ConfigurationError, match="SFPUBSUB_CONFIG"):
        Settings.load({"profile": "a"}, {})


def test_relative_paths_in_a_file_start_at_its_directory(file, tmp_path):
    """A relative path in a settings file starts at the file's directory, not at the working
    directory.
    """
    config = file("private_key_file = 'keys/key.pem'\nca_file = '/etc/ca.pem'\n")
    settings = Settings.load({"config": config}, {})
    assert settings.private_key_file == str(tmp_path / "keys" / "key.pem")
    assert settings.ca_file == "/etc/ca.pem"


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
@pytest.mark.parametrize("table", ["", "[profile.unused]\n"])
def test_a_secret_readable_by_others_causes_a_warning(file, caplog, mode, warned, table):
    """A file with a secret that others can read causes a warning with the chmod command to run.

    A file without secrets causes none.
    """
    caplog.set_level(logging.WARNING, "sfpubsub.config")
    Settings.load({"config": file(f"{table}client_secret = 'hush'", mode)}, {})
    assert ("chmod 600" in caplog.text) is warned
    assert "hush" not in caplog.text
    caplog.clear()
    Settings.load({"config": file("client_id = 'k'", mode)}, {})
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("SFPUBSUB_ACCES_TOKEN", "SFPUBSUB_ACCESS_TOKEN"),
        ("SFPUBSUB_PRIVATE_KEY", "SFPUBSUB_PRIVATE_KEY_FILE"),
        ("SFPUBSUB_PROFIL", "SFPUBSUB_PROFILE"),
        ("SFPUBSUB_XYZ", "known names are"),
    ],
)
def test_an_unknown_variable_is_rejected(variable, suggestion):
    """An unknown SFPUBSUB_ variable raises an error that suggests a name and hides the value."""
    with pytest.raises(ConfigurationError, match=suggestion) as caught:
        Settings.load({}, {variable: "hush"})
    assert "hush" not in str(caught.value)


def test_an_unknown_option_is_rejected():
    """Settings.load() checks the names of options itself, because `from_env` takes any mapping."""
    with pytest.raises(ConfigurationError, match=r"did you mean endpoint\?"):
        Settings.load({"endpont": "x:1"}, {})


def test_every_variable_of_the_project_is_known():
    """No variable in the project's code or documentation is rejected as a misspelled setting."""
    used = set()
    for directory in ("src", "scripts", "docs", "examples", "benchmarks", ".ci"):
        for path in (ROOT / directory).rglob("*"):
            if path.suffix in (".py", ".sh", ".md", ".toml", "") and path.is_file():
                used |= set(re.findall(r"\bSFPUBSUB_[A-Z]+(?:_[A-Z]+)*\b", path.read_text()))
    for path in (ROOT / "tests").rglob("*.py"):  # tests also contain misspelled names
        used |= set(re.findall(r"environ(?:\.get\(|\[)\"(SFPUBSUB_\w+)", path.read_text()))
    used -= {"SFPUBSUB_X"}  # a placeholder for any name
    from_environment(dict.fromkeys(used, "x"), NAMES)
    assert {ENVIRONMENT_PREFIX + name for name in NOT_SETTINGS} <= used


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("insecure", "yes", "1 or force"),
        ("auth", "telepathy", "token, client-credentials, jwt, refresh, password, sf-cli"),
        ("login_url", "login.salesforce.com", "not a valid URL"),
        ("login_url", "http://login.salesforce.com", "plaintext"),
        ("login_url", "https://user:pw@login.salesforce.com", "password"),
        (
            "instance_url",
            "https://x.my.salesforce.com/services",
            "must contain only a scheme and a host",
        ),
        ("audience", "everyone", "not a valid URL"),
        ("proxy", "proxy:3128", "http://host:port"),
        ("proxy", "socks5://proxy:3128", "http://host:port"),
        ("ping_interval", "often", "number of seconds"),
        ("ping_interval", "-1", "number of seconds"),
        ("ping_timeout", "nan", "number of seconds"),
    ],
)
def test_an_invalid_value_is_rejected(name, value, message):
    """An invalid value raises an error that names the setting and its source."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        Settings.load({name: value}, {})
    assert f"SFPUBSUB_{name.upper()} (option --{name.replace('_', '-')})" in str(caught.value)


def test_plaintext_urls_need_force_except_for_loopback():
    """A plain HTTP URL is accepted for loopback, and for other hosts with insecure="force"."""
    assert Settings.load({"login_url": "http://127.0.0.1:7/"}, {}).login_url == "http://127.0.0.1:7"
    forced = Settings.load({"login_url": "http://10.0.0.1", "insecure": "force"}, {})
    assert forced.login_url == "http://10.0.0.1"


def test_every_setting_except_the_secrets_is_an_option():
    """Secrets cannot be given as options, because other users of a machine can see
    command lines.
    """
    assert OPTIONS.keys() == {*NAMES, "config", "profile"} - {*SECRETS}


def test_settings_do_not_show_a_secret():
    """Printing or describing settings shows no secret, and pickling them raises."""
    values = {name: f"very-secret-{name}" for name in SECRETS}
    settings = Settings(**values, proxy="http://me:very-secret-proxy@proxy:3128")
    assert "very-secret" not in f"{settings} {settings!r} {settings.describe()}"
    with pytest.raises(TypeError, match="secrets") as caught:
        pickle.dumps(settings)
    assert "very-secret" not in str(caught.value)


def test_every_sign_in_flow_names_existing_settings():
    """The table of sign-in flows names only settings that exist."""
    for needed in AUTH_WAYS.values():
        assert set(needed) <= set(NAMES)


@pytest.mark.parametrize("name", ["max_pending_count", "max_bytes", "max_unacked"])
def test_a_limit_of_zero_is_rejected(name: str):
    """A limit of zero raises, because the subscription could never receive anything."""
    with pytest.raises(ValueError, match=name):
        Limits(**{name: 0})


def test_the_default_timings_respect_the_services_limits():
    """The default timings stay within the service's limits and outlast its longest delays."""
    times = Timings()
    assert times.reserve < 60
    assert times.commit_interval + times.commit_timeout < 1800
    assert times.keepalive + times.keepalive_margin > 270
    assert times.slot_timeout > 19 * 60


# Settings that gRPC and HTTP share.


def test_trusted_roots_have_three_sources(monkeypatch, tmp_path):
    """The trusted roots come from SSL_CERT_FILE, otherwise from the system's bundle, otherwise from
    certifi.
    """
    import certifi

    mine = tmp_path / "mine.pem"
    mine.write_text("x")
    monkeypatch.setenv("SSL_CERT_FILE", str(mine))
    with pytest.raises(
        ConfigurationError, match=r"contains no certificate|contains no PEM certificate"
    ):
        network.trusted_roots()
    mine.write_bytes(Path(certifi.where()).read_bytes())
    assert network.trusted_roots() == mine
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
    monkeypatch.setattr(network, "SYSTEM_BUNDLES", (str(tmp_path / "no"), str(mine)))
    assert network.trusted_roots() == mine
    monkeypatch.setattr(network, "SYSTEM_BUNDLES", ())
    assert str(network.trusted_roots()) == certifi.where()


def test_a_ca_file_without_a_certificate_is_rejected(tmp_path):
    """A CA file without a certificate raises, because gRPC would accept it and fail every
    handshake.
    """
    for text in ("", "no certificate"):
        (tmp_path / "ca.pem").write_text(text)
        with pytest.raises(
            ConfigurationError, match=r"contains no certificate|contains no PEM certificate"
        ):
            network.trusted_roots(str(tmp_path / "ca.pem"))


@pytest.mark.parametrize(
    ("variables", "given", "proxy"),
    [
        ({}, "", ""),
        ({"https_proxy": "http://p:1"}, "", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "", "http://p:1"),
        ({"https_proxy": "p:1"}, "", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "http://own:2", "http://own:2"),
        ({"NO_PROXY": ".example.com"}, "http://own:2", ""),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, "", ""),
        ({"http_proxy": "http://p:1"}, "", ""),
        ({"all_proxy": "http://p:1"}, "", ""),
    ],
)
def test_one_rule_chooses_the_proxy(monkeypatch, variables, given, proxy):
    """proxy_to() follows one rule, because libraries disagree about the names and case of the
    variables.

    The setting overrides https_proxy, and no_proxy overrides both.
    """
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert network.proxy_to("api.example.com", given) == proxy


def test_no_proxy_may_name_a_network(monkeypatch):
    """no_proxy may contain a network such as 10.1.0.0/16.

    A proxy URL that is not HTTP raises an error that keeps its password out of the traceback.
    """
    monkeypatch.setenv("no_proxy", "name.example.com, 10.1.0.0/16")
    assert network.proxy_to("10.1.2.3", "http://own:2") == ""
    assert network.proxy_to("10.2.2.3", "http://own:2") == "http://own:2"
    monkeypatch.setenv("https_proxy", "socks5://me:hush@p:1")
    with pytest.raises(
        ConfigurationError, match="https_proxy is not the URL of an HTTP proxy"
    ) as caught:
        network.proxy_to("10.2.2.3")
    assert not any("hush" in str(entry.frame.f_locals) for entry in caught.traceback)


@pytest.mark.parametrize(
    "endpoint",
    ["", "host", "host:", "host:0", "host:65536", "host:²", "https://host:443", "::1:443"],
)
def test_an_invalid_endpoint_is_rejected(endpoint):
    """An endpoint that is not a host and a port raises; an IPv6 address in brackets is accepted."""
    with pytest.raises(ConfigurationError, match="use host:port"):
        network.split_endpoint(endpoint)
    assert network.split_endpoint("[::1]:443") == ("::1", 443)
