"""Tests of Tab completion: the installed script works in the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sfpubsub.cli.main import run

from ..conftest import PATIENCE


@pytest.fixture
def home(monkeypatch, tmp_path):
    """Return an empty home directory, and remove the XDG variables from the environment."""
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/sfpubsub"),
        ("zsh", ".local/share/zsh/site-functions/_sfpubsub"),
        ("fish", ".config/fish/completions/sfpubsub.fish"),
    ],
)
def test_install_writes_where_the_shell_looks(shell, place, home, monkeypatch, capsys):
    """The script is installed for the shell named by SHELL; a second installation replaces it."""
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    for _ in range(2):
        assert run(["completion", "--install"]) == 0
        assert capsys.readouterr().out == f"{home / place}\n"
    script = (home / place).read_text()
    assert f"_SFPUBSUB_COMPLETE={shell}_complete" in script
    assert run(["completion", "--shell", shell]) == 0
    assert capsys.readouterr().out == script


def test_bash_completes_with_the_installed_script(home, capsys):
    """A real bash that has sourced the script completes a partial command."""
    assert run(["completion", "--install", "--shell", "bash"]) == 0
    path = capsys.readouterr().out.strip()
    asked = (
        f"source {path}; COMP_WORDS=(sfpubsub sub); COMP_CWORD=1; "
        "_sfpubsub_completion sfpubsub; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        ["bash", "-c", asked],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=False,
    )
    assert (done.stdout, done.stderr) == ("subscribe\n", "")


def test_an_unknown_shell_is_a_usage_error(home, monkeypatch, capsys):
    """The error lists the supported shells, and nothing is written."""
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert run(["completion", "--install"]) == 2
    assert "--shell with one of bash, zsh, fish" in capsys.readouterr().err
    assert list(home.iterdir()) == []
