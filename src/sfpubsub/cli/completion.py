"""``sfpubsub completion``: shell completion for commands and options.

Click generates the script. This module writes it to the shell's directory for such scripts.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

# Environment variable through which the shell requests completions. Click derives it from the
# program's name.
VARIABLE = "_SFPUBSUB_COMPLETE"

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.option(
    "--shell",
    type=click.Choice(SHELLS),
    help="Shell to use.  [default: from the environment variable SHELL]",
)
@click.option(
    "--install",
    is_flag=True,
    help="Install the script for your user, and print its path. Completion then works in new "
    "shells. Installing again replaces the script.",
)
def completion(shell: str | None, install: bool) -> None:
    """Print the script for Tab completion in the shell, or install it."""
    shell = shell or _own_shell()
    script = _script(shell)
    if not install:
        click.echo(script)
        return
    path = _place(shell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script + "\n", encoding="utf-8")
    click.echo(str(path))
    if shell == "zsh":
        click.echo(
            f"add this line to ~/.zshrc, before compinit: fpath=({path.parent} $fpath)", err=True
        )
    elif shell == "bash":
        click.echo(
            "completion requires the bash-completion package, which most systems include", err=True
        )


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(
            f"the shell {name or '(SHELL is not set)'} is not supported: use --shell with one of "
            + ", ".join(SHELLS)
        )
    return name


def _place(shell: str) -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    if shell == "bash":
        return data / "bash-completion" / "completions" / "sfpubsub"
    if shell == "zsh":
        return data / "zsh" / "site-functions" / "_sfpubsub"
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "fish" / "completions" / "sfpubsub.fish"


def _script(shell: str) -> str:
    from sfpubsub.cli.main import cli

    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(
            f"this version of click does not support completion for {shell}: upgrade click"
        )
    return found(cli, {}, "sfpubsub", VARIABLE).source()
