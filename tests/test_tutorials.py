"""Tests that run the tutorials' commands and compare their output with the pages.

The blocks of a page are run in order. A block whose first line is a comment with a file name is
written to that file. An `sh` block is run in one shell, in a directory that stands in for the
clone. A `text` block is the output of the command before it, where `…` stands for any text. Only
the emulator's ports differ.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from .pages import DOCS, ROOT, blocks, page
from .test_docs import free_ports, terminal  # noqa: F401  # a fixture

FENCE = re.compile(r"^```(sh|text|python|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (tour/\S+)\n")

# Printed between the outputs of two commands.
MARK = "==== the next command"

# Timeout for a page in seconds; some start Spark twice, which takes a busy machine half a minute
# each time.
TOUR = 600.0


@dataclass
class Step:
    """A command, the files to write before it, and the output that the page shows, if any."""

    files: dict[str, str]
    command: str
    shown: str | None = None


def steps(path: Path) -> list[Step]:
    """Return the commands of a page."""
    found: list[Step] = []
    files: dict[str, str] = {}
    for language, text in FENCE.findall(path.read_text(encoding="utf-8")):
        if named := FILE.match(text):
            files[named.group(1)] = text
        elif language == "sh":
            found.append(Step(files, text))
            files = {}
        elif language == "text":
            assert found[-1].shown is None, f"{path.name}: two outputs of {found[-1].command}"
            found[-1].shown = text
    assert not files, f"{path.name}: {list(files)} are not used"
    return found


def script(found: list[Step], clone: Path, ports: dict[str, str]) -> str:
    """Return all commands as one shell script that prints a mark after each."""
    # The emulator shares the shell's output, which ends only when both processes have ended.
    lines = ["set -e", "trap 'jobs -p | xargs -r kill' EXIT", "mkdir -p tour"]
    for number, step in enumerate(found):
        for name, text in step.files.items():
            kept = clone / f"{number}.{Path(name).name}"
            kept.write_text(text, encoding="utf-8")
            lines.append(f"cp {kept} $START/{name}")
        own = f"sfpubsub emulator --grpc-port {ports['7011']} --http-port {ports['7012']} --"
        command = step.command.replace("sfpubsub emulator --", own).rstrip()
        if command.endswith("&"):  # a user would wait for its first line of output
            command = f"{command[:-1]} > tour/started &\n"
            command += "until [ -s tour/started ]; do sleep 0.1; done; cat tour/started"
        lines.append(command)
        lines.append(f"echo; echo '{MARK}'")
    return "START=$PWD\n" + "\n".join(lines)


def assert_shown(shown: str, printed: str, command: str) -> None:
    """Check that what was printed is what a page shows; `…` stands for any text."""
    any_lines = re.sub(r"^…\n|\n…$", "…", shown.strip(), flags=re.MULTILINE)
    pattern = ".*".join(re.escape(part) for part in any_lines.split("…"))
    assert re.fullmatch(pattern, printed.strip(), re.DOTALL), (
        f"{command}\nprints\n\n{printed.strip()}\n\nand not\n\n{shown}"
    )


def run(name: str, tmp_path: Path, ports: dict[str, str]) -> None:
    """Run a tutorial, and compare the output of its commands with the page."""
    found = steps(page(name))
    clone = tmp_path / "clone"
    (clone / "scripts").mkdir(parents=True)
    # scripts/test.sh has run the setup already; a slow test below runs it in a fresh clone.
    (clone / "scripts" / "setup.sh").write_text("echo 'ready: sfpubsub 0 is in .venv'\n")
    home = tmp_path / "home"
    home.mkdir()
    if (Path.home() / ".cache").exists():  # so that Delta's jars need not be downloaded again
        (home / ".cache").symlink_to(Path.home() / ".cache")
    text = f"export SFPUBSUB_EMULATOR_URL=http://127.0.0.1:{ports['7012']}\n"
    text += script(found, clone, ports)
    with terminal(f"exec 2>&1\n{text}", tmp_path, {}) as shell:
        out, _ = shell.communicate(timeout=TOUR)
    assert shell.returncode == 0, out
    outputs = out.split(f"\n{MARK}\n")
    for step, printed in zip(found, outputs, strict=False):
        if step.shown is not None:
            for shown, real in ports.items():
                printed = printed.replace(f"127.0.0.1:{real}", f"127.0.0.1:{shown}")
            assert_shown(step.shown, printed, step.command)


@pytest.mark.parametrize(
    "name",
    [
        "first-subscription",
        "first-publisher",
        "testing-your-subscriber",
        "first-table",
        pytest.param("mirrored-object", marks=pytest.mark.slow),  # starts Spark three times
    ],
)
def test_a_tutorial_runs(name, tmp_path, free_ports):  # noqa: F811
    """Every command on the page works unchanged, and prints what the page shows."""
    run(name, tmp_path, free_ports)


def test_every_tutorial_is_run():
    """Every page in docs/tutorials is a parameter of test_a_tutorial_runs."""
    (marked,) = (mark for mark in test_a_tutorial_runs.pytestmark if mark.name == "parametrize")
    named = {getattr(each, "values", (each,))[0] for each in marked.args[1]}
    assert named == {path.stem for path in (DOCS / "tutorials").glob("*.md")} - {"index"}


def test_readme_and_tutorial_have_the_same_five_commands():
    """The README has the five commands of the first tutorial, which shows the output of each.

    The last command prints an event from the table.
    """
    first = steps(page("first-table"))[:5]
    assert all(step.shown for step in first)
    assert first[-1].shown == "CREATE Acme Rome\n"
    _, five, *_ = blocks(ROOT / "README.md", "sh")
    assert five == "".join(step.command for step in first)


@pytest.mark.slow  # creates an environment with Spark
def test_the_five_commands_work_in_a_fresh_clone(tmp_path, free_ports):  # noqa: F811
    """In a fresh clone, the tutorial's first five commands suffice to print an event."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    text = f"export SFPUBSUB_EMULATOR_URL=http://127.0.0.1:{free_ports['7012']}\n"
    text += script(steps(page("first-table"))[:5], tmp_path, free_ports)
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{text}"],
        cwd=clone,
        env={k: v for k, v in os.environ.items() if not k.startswith(("SFPUBSUB_", "VIRTUAL_ENV"))},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    *_, shown, _ = done.stdout.split(f"\n{MARK}\n")
    assert shown.strip() == "CREATE Acme Rome"
