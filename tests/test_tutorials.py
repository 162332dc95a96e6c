"""The tutorials, executed: every command as it stands there, and what it prints compared.

A page's blocks are taken in their order. A block whose first line is a comment with a file's name
is that file; ``sh`` is typed into one shell, in a stand-in for the clone; ``text`` is what the
command before it prints, where ``…`` stands for anything. Only the emulator's ports are the test's.
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

# Between the outputs of two commands.
MARK = "==== the next command"

# Longest that a page may take, in seconds: some start Spark twice, a busy machine half a minute
# each. It is a limit for failure, and nothing waits for it.
TOUR = 600.0


@dataclass
class Step:
    """A command, the files that are written before it, and what it prints."""

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
    """Return all commands as one script, which writes a mark after each."""
    # The emulator has the shell's output, which ends only when both have ended.
    lines = ["set -e", "trap 'jobs -p | xargs -r kill' EXIT", "mkdir -p tour"]
    for number, step in enumerate(found):
        for name, text in step.files.items():
            kept = clone / f"{number}.{Path(name).name}"
            kept.write_text(text, encoding="utf-8")
            lines.append(f"cp {kept} $START/{name}")
        own = f"sfpubsub emulator --grpc-port {ports['7011']} --http-port {ports['7012']} --"
        command = step.command.replace("sfpubsub emulator --", own).rstrip()
        if command.endswith("&"):  # who types it sees its line before going on
            command = f"{command[:-1]} > tour/started &\n"
            command += "until [ -s tour/started ]; do sleep 0.1; done; cat tour/started"
        lines.append(command)
        lines.append(f"echo; echo '{MARK}'")
    return "START=$PWD\n" + "\n".join(lines)


def assert_shown(shown: str, printed: str, command: str) -> None:
    """Compare what a page shows with what was printed; ``…`` stands for anything."""
    any_lines = re.sub(r"^…\n|\n…$", "…", shown.strip(), flags=re.MULTILINE)
    pattern = ".*".join(re.escape(part) for part in any_lines.split("…"))
    assert re.fullmatch(pattern, printed.strip(), re.DOTALL), (
        f"{command}\nprints\n\n{printed.strip()}\n\nand not\n\n{shown}"
    )


def run(name: str, tmp_path: Path, ports: dict[str, str]) -> None:
    """Run a tutorial and compare what each of its commands prints."""
    found = steps(page(name))
    clone = tmp_path / "clone"
    (clone / "scripts").mkdir(parents=True)
    # Setting up is what scripts/test.sh has done for this run; a slow test does it from a clone.
    (clone / "scripts" / "setup.sh").write_text("echo 'ready: sfpubsub 0 is in .venv'\n")
    home = tmp_path / "home"
    home.mkdir()
    if (Path.home() / ".cache").exists():  # the jars of Delta, a download for who has none yet
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
    """Every command of the page works as it stands there, and prints what the page shows."""
    run(name, tmp_path, free_ports)


def test_every_tutorial_is_run():
    """No page of the folder is left out above."""
    (marked,) = (mark for mark in test_a_tutorial_runs.pytestmark if mark.name == "parametrize")
    named = {getattr(each, "values", (each,))[0] for each in marked.args[1]}
    assert named == {path.stem for path in (DOCS / "tutorials").glob("*.md")} - {"index"}


def test_five_commands_lead_from_a_clone_to_a_table():
    """The first five commands of the page, each a single one, have an output each; the README
    shows the same ones."""
    first = steps(page("first-table"))[:5]
    assert all(step.shown for step in first)
    assert first[-1].shown == "CREATE Acme Rome\n"
    _, five, *_ = blocks(ROOT / "README.md", "sh")
    assert five == "".join(step.command for step in first)


@pytest.mark.slow  # makes an environment with Spark in it
def test_a_real_clone_needs_the_five_commands_and_no_other(tmp_path, free_ports):  # noqa: F811
    """Set up by the first of them, in a clone that has nothing but what is committed."""
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
