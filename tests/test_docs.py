"""What the documentation shows is executed."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from sfpubsub.cli.main import cli, run

from .cli.test_cli import point_at
from .client.test_managed import ACCOUNT, TOPIC, orders

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "client.md",
    ROOT / "docs" / "values.md",
    ROOT / "docs" / "change-events.md",
    ROOT / "docs" / "arrow.md",
    ROOT / "docs" / "quarantine.md",
    ROOT / "docs" / "settings.md",
    ROOT / "docs" / "signing-in.md",
    ROOT / "docs" / "managed-subscriptions.md",
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


EXAMPLES = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(blocks(page, "python"), 1)
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_python_example_runs(code, run_emulator, monkeypatch, tmp_path):
    """Every Python block of the pages runs against the emulator as it stands there."""
    emulator = run_emulator()
    point_at(emulator, monkeypatch)
    monkeypatch.chdir(tmp_path)
    emulator.publish(TOPIC, orders(3))
    emulator.publish("/data/AccountChangeEvent", [ACCOUNT])

    class EnoughError(Exception):
        pass

    # The README's loop is endless: its print is where a test can step out.
    def printed(*_values):
        raise EnoughError

    namespace = {"__name__": "example"}
    if "for batch in subscription" in code:
        with pytest.raises(EnoughError):
            exec(compile(code, "example", "exec"), {**namespace, "print": printed})
    else:
        exec(compile(code, "example", "exec"), namespace)


EMULATOR_PAGE = ROOT / "docs" / "emulator.md"


def test_the_emulators_change_events_are_published_and_read(
    run_emulator, monkeypatch, tmp_path, capsys
):
    """The page's seed takes the page's event, and its facts are those that the page prints."""
    _, seed, _ = blocks(EMULATOR_PAGE, "toml")
    (tmp_path / "changes.toml").write_text(seed)
    point_at(run_emulator(seed=tmp_path / "changes.toml"), monkeypatch)
    (code,) = [code for code in blocks(EMULATOR_PAGE, "python") if "from_env" in code]
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert [capsys.readouterr().out] == blocks(EMULATOR_PAGE, "text")


def test_the_emulators_settings_file_is_whole(run_emulator, monkeypatch, tmp_path, capsys):
    """With the page's profile alone, over TLS, everything that `doctor` looks at is well."""
    emulator = run_emulator(tls=True)
    for variable in [name for name in os.environ if name.startswith("SFPUBSUB_")]:
        monkeypatch.delenv(variable)
    *_, text = blocks(EMULATOR_PAGE, "toml")
    for shown, real in (
        ("127.0.0.1:7011", emulator.grpc_target),
        ("https://127.0.0.1:7012", emulator.http_url),
        ("/tmp/emulator/ca.pem", str(emulator.ca_file)),
    ):
        assert shown in text
        text = text.replace(shown, real)
    file = tmp_path / "pubsub.toml"
    file.write_text(text)
    file.chmod(0o600)
    (doctor,) = [
        shlex.split(line)
        for block in blocks(EMULATOR_PAGE, "sh")
        for line in block.splitlines()
        if "doctor" in line
    ]
    monkeypatch.chdir(tmp_path)
    assert run(doctor[1:]) == 0, capsys.readouterr()
    assert "ok      TLS" in capsys.readouterr().out


def test_the_command_lines_of_the_readme_parse():
    """Every sfpubsub line uses commands and options that exist."""
    lines = [
        line.partition("#")[0].strip()
        for block in blocks(ROOT / "README.md", "sh")
        for line in block.splitlines()
        if line.startswith("sfpubsub ")
    ]
    assert len(lines) >= 6
    for line in lines:
        _, command, *arguments = shlex.split(line)
        with cli.make_context("sfpubsub", [command, *arguments]) as context:
            found = cli.get_command(context, command)
            assert found is not None
            if "--file" not in arguments:  # parsing it would open the file
                found.make_context(command, arguments, parent=context).close()


def test_the_readme_names_its_evidence():
    """The tests that the promises point to exist."""
    for path in re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "README.md").read_text()):
        assert (ROOT / path).is_file(), path


def test_every_page_that_is_linked_exists():
    """No dead link between our own pages."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
