"""Tests that the imports of every module respect the project's layers."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "sfpubsub"

# The packages that each package may import, apart from itself, types and errors.
MAY_IMPORT = {
    "types": set(),
    "errors": {"types"},
    "backoff": set(),
    "config": set(),
    "durable": set(),
    "aio_bridge": {"process"},
    "process": set(),
    "stores": {"durable"},
    "protocol": {"config", "backoff"},
    "native": set(),
    "avro": {"native"},
    "auth": {"config", "durable", "backoff"},
    "tooling": {"config", "auth"},
    "rest": {"config", "auth", "backoff"},
    "transports": {"protocol", "config", "native", "process", "sfpubsub_grpc"},
    "client": {
        "transports",
        "protocol",
        "backoff",
        "avro",
        "auth",
        "config",
        "stores",
        "aio_bridge",
        "process",
    },
    "spark": {
        "client",
        "streaming",
        "avro",
        "auth",
        "rest",
        "tooling",  # jobs ask for the members of a channel, and for a managed subscription's record
        "config",
        "durable",
        "stores",
        "backoff",
    },
    "streaming": {"backoff", "auth", "config", "stores", "aio_bridge", "process", "tooling"},
    "emulator": {"sfpubsub_grpc"},
    "monitoring": {"client", "config"},
    "testing": {"emulator", "transports"},
    "pytest_plugin": {"emulator", "config"},
    "cli": {
        "monitoring",
        "stores",
        "client",
        "config",
        "durable",
        "spark",
        "emulator",
        "avro",
        "auth",
        "tooling",
        "rest",
        "transports",
        "protocol",
        "streaming",
        "native",  # to say whether it is in use
    },
}

# The subpackages ("rooms") that each one of spark/ may import; the order excludes cycles.
SPARK_MAY_IMPORT = {
    "runtime": set(),
    "formats": {"runtime"},
    "raw": {"formats", "runtime"},
    "ingest": {"formats", "raw", "runtime"},
    "stream": {"ingest", "formats", "raw", "runtime"},
    "records": {"formats", "raw", "runtime"},
    "tables": {"records", "formats", "raw", "runtime"},
    "mirror": {"tables", "records", "formats", "ingest", "raw", "runtime"},
}

# The same for the rooms of emulator/.
EMULATOR_MAY_IMPORT = {
    "faults": set(),
    "org": {"faults"},
    "grpc": {"org", "faults"},
    "http": {"org", "faults"},
    "page": {"http", "org", "faults"},
}

# The libraries that each package must not import. For types, errors and durable, a test below
# allows only the standard library.
_IO = {"threading", "asyncio", "queue", "concurrent", "time", "random", "socket", "os"}
MUST_NOT_IMPORT = {
    "config": {"grpc", "requests", "pyspark"},
    "protocol": {"grpc", "google", "fastavro", "requests", "pyspark", "pyarrow", *_IO},
    "avro": {"grpc", "requests", "pyspark", "asyncio"},
    "auth": {"grpc", "fastavro", "pyspark"},
    "tooling": {"grpc", "fastavro", "pyspark"},
    "rest": {"grpc", "fastavro", "pyspark", "pyarrow"},
    "transports": {"fastavro", "requests", "pyspark"},
    "client": {"pyspark"},
    "monitoring": {"grpc", "requests", "fastavro", "pyspark"},
    "stores": {"grpc", "requests", "fastavro", "pyspark"},
    "streaming": {"grpc", "pyspark", "fastavro"},
    "emulator": {"pyspark", "requests"},
    "spark": {"grpc"},
}

MODULES = sorted(SRC.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield every imported module, including those imported only for type checking."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports in src are absolute"
            yield node.module or ""
            # `from sfpubsub import x` may import a subpackage.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(path: Path) -> str:
    """Return the first-level package or module of sfpubsub that contains the file *path*."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_modules_import_only_what_their_layer_allows(path: Path):
    """Every module imports only the packages and libraries that its layer allows."""
    package = package_of(path)
    if package in ("__init__", "__main__"):
        return
    allowed = MAY_IMPORT[package] | {package, "types", "errors"}
    forbidden = MUST_NOT_IMPORT.get(package, set())
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in forbidden, f"{path} imports {name}"
        if top == "sfpubsub_grpc":
            assert "sfpubsub_grpc" in allowed, f"{path} imports {name}"
        if top == "sfpubsub" and rest and rest[0] in {*MAY_IMPORT, "tooling"}:
            assert rest[0] in allowed, f"{path} imports {name}"


# The modules of spark/ that decide, and so can be run in one thread with a virtual clock.
# Some import names of types from modules that use Spark.
DECIDING = [
    SRC / "spark" / name
    for name in (
        "ingest/schedule.py",
        *(
            f"mirror/{name}.py"
            for name in (
                *("actions", "budget", "deadlines", "due_reads", "failures", "mirror_state"),
                *("objects_schedule", "pieces", "progress", "reads_schedule", "rights_watch"),
                *("schedule", "selection_watch", "signals", "stream_state", "waiting"),
            )
        ),
    )
]


@pytest.mark.parametrize("path", DECIDING, ids=lambda path: str(path.relative_to(SRC)))
def test_what_decides_has_no_clock_thread_or_spark(path: Path):
    """The decisions of an ingest and of a mirror can be simulated."""
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & {"pyspark", "pyarrow", "requests", *_IO}


# Packages that consist of rooms, with the table above and the modules outside all rooms.
ROOMS = {
    "spark": (SPARK_MAY_IMPORT, {"__init__.py"}),
    "emulator": (
        EMULATOR_MAY_IMPORT,
        {"__init__.py", "addresses.py", "remote.py", "server.py", "tls.py"},
    ),
}
IN_ROOMS = [path for path in MODULES if package_of(path) in ROOMS]


@pytest.mark.parametrize("path", IN_ROOMS, ids=lambda path: str(path.relative_to(SRC)))
def test_subpackages_import_only_lower_ones(path: Path):
    """A module of spark/ or emulator/ imports only from its own subpackage and from
    those below it.
    """
    package, room, *rest = path.relative_to(SRC).parts
    may_import, outside = ROOMS[package]
    if not rest:
        assert room in outside, f"{path} is in no room"
        return
    for name in imports(path):
        if name.startswith(f"sfpubsub.{package}."):
            assert name.split(".")[2] in {room, *may_import[room]}, f"{path} imports {name}"


def circle_in(package: Path) -> list[str]:
    """Return the names of modules that import each other in a circle; empty if there is none.

    Every import counts. One that is in a function, or only for type checking, hides a circle from
    Python, but not from the reader, who can understand none of the modules without the others.
    """
    paths = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in package.rglob("*.py")
    }
    try:
        TopologicalSorter(
            {name: set(imported_modules(path, paths)) - {name} for name, path in paths.items()}
        ).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def imported_modules(path: Path, modules: Collection[str]) -> Iterator[str]:
    """Yield those of *modules* that a file imports.

    For `from package import name`, this is the module `package.name` if it exists, or else the
    package itself.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield module if module in modules else node.module


def test_no_modules_import_each_other_in_a_circle():
    """Each module can be read and understood with only what is below it, inside a room as well."""
    assert circle_in(SRC) == []


@pytest.mark.parametrize(
    "back",
    [
        "import room.a",
        "from room import a",
        "from room.a import A",
        "def f():\n    from room.a import A",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from room.a import A",
        "from room import A",  # which the package imports from the module a
    ],
)
def test_a_circle_is_found_however_a_module_is_imported(tmp_path: Path, back: str):
    """No form of import hides a circle from the rule above."""
    room = tmp_path / "room"
    room.mkdir()
    (room / "__init__.py").write_text("from room.a import A\n")
    (room / "a.py").write_text("from room.b import B\nclass A(B): ...\n")
    (room / "b.py").write_text("from room import c\nclass B: ...\n")
    (room / "c.py").write_text("")
    assert circle_in(room) == []
    (room / "c.py").write_text(f"{back}\n")
    assert {"room.a", "room.b", "room.c"} <= set(circle_in(room))


def test_only_the_wire_module_imports_the_protobuf_messages():
    """Outside the emulator, only transports/wire.py imports the protobuf messages."""
    users = {
        str(path.relative_to(SRC))
        for path in MODULES
        if package_of(path) != "emulator"
        and any(name.endswith("pubsub_api_pb2") for name in imports(path))
    }
    assert users == {"transports/wire.py"}


def test_only_the_asyncio_client_imports_asyncio():
    """Only the modules of the asyncio client and its bridge import asyncio; the rest needs no event
    loop.
    """
    users = {
        str(path.relative_to(SRC))
        for path in MODULES
        if any(name.split(".")[0] == "asyncio" for name in imports(path))
    }
    assert users == {
        "client/aio.py",
        "aio_bridge.py",
        "client/aio_publisher.py",
        "client/aio_runner.py",
        "client/aio_subscription.py",
    }


# Modules of the Streaming API client that make its decisions and do no I/O.
STREAMING_CORE = (
    "bayeux",
    "failures",
    "progress",
    "protocol",
    "received",
    "states",
    "subscriptions",
)


@pytest.mark.parametrize("name", STREAMING_CORE)
def test_the_core_of_streaming_does_no_io(name: str):
    """The streaming protocol core imports no clock, thread, socket or HTTP library."""
    for module in imports(SRC / "streaming" / f"{name}.py"):
        top = module.split(".")[0]
        assert top not in {"requests", "urllib3", *_IO}, module
        assert not module.startswith(("sfpubsub.auth", "sfpubsub.streaming.driver")), module


def test_every_package_has_a_layer():
    """Every package is in the table of layers, so a new one cannot escape the rules."""
    packages = {package_of(path) for path in MODULES} - {"__init__", "__main__"}
    assert packages <= MAY_IMPORT.keys()


@pytest.mark.parametrize(
    "path", [*SRC.glob("types/*.py"), SRC / "errors.py", SRC / "durable.py"], ids=lambda p: p.name
)
def test_the_lowest_modules_need_only_the_standard_library(path: Path):
    """`types`, `errors` and `durable` import only the standard library and sfpubsub itself."""
    import sys

    for module in imports(path):
        top = module.split(".")[0]
        assert top == "sfpubsub" or top in sys.stdlib_module_names


# The only module of spark/ that uses Spark's JVM through py4j or PySpark's private attributes: it
# starts the JVM, and knows py4j's errors.
USE_JAVA = {"runtime/session.py"}
_JAVA = re.compile(
    r"\._jvm\b|\._jdf\b|\._jsparkSession\b|\._jsc\b|\._gateway\b|^\s*(?:from|import) py4j", re.M
)


def test_spark_is_used_through_documented_interfaces():
    """Apart from starting it, no module calls Spark's Java classes, which differ between versions,
    and do not exist over Spark Connect.
    """
    found = {
        str(path.relative_to(SRC / "spark"))
        for path in (SRC / "spark").rglob("*.py")
        if _JAVA.search(path.read_text())
    }
    assert found == USE_JAVA
