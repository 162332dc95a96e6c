"""The layer map of the project, read from the imports of every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "sfpubsub"

# Package -> what it may import from sfpubsub, apart from itself, types and errors.
MAY_IMPORT = {
    "types": set(),
    "errors": {"types"},
    "config": set(),
    "durable": set(),
    "aio_bridge": set(),
    "stores": {"durable"},
    "protocol": {"config"},
    "native": set(),
    "avro": {"native"},
    "auth": {"config"},
    "tooling": {"config", "auth"},
    "rest": {"config", "auth"},
    "transports": {"protocol", "config", "native", "sfpubsub_grpc"},
    "client": {"transports", "protocol", "avro", "auth", "config", "stores", "aio_bridge"},
    "spark": {"client", "streaming", "avro", "auth", "rest", "config", "durable", "stores"},
    "streaming": {"protocol", "auth", "config", "stores", "aio_bridge", "tooling"},
    "emulator": {"sfpubsub_grpc"},
    "monitoring": {"client", "config"},
    "testing": {"emulator", "transports"},
    "pytest_plugin": {"emulator", "config"},
    "cli": {
        "monitoring",
        "stores",
        "client",
        "config",
        "spark",
        "emulator",
        "avro",
        "auth",
        "tooling",
        "rest",
        "transports",
        "protocol",
        "streaming",
    },
}

# Room of spark/ -> the rooms it may import, apart from itself. They have one order, so no circle.
SPARK_MAY_IMPORT = {
    "runtime": set(),
    "raw": {"runtime"},
    "ingest": {"raw", "runtime"},
    "stream": {"ingest", "raw", "runtime"},
    "tables": {"raw", "runtime"},
    "mirror": {"tables", "ingest", "raw", "runtime"},
}

# Room of emulator/ -> the rooms it may import, apart from itself.
EMULATOR_MAY_IMPORT = {
    "faults": set(),
    "org": {"faults"},
    "grpc": {"org", "faults"},
    "http": {"org", "faults"},
    "page": {"http", "org", "faults"},
}

# Package -> what it must not import from elsewhere. types and errors take nothing but the standard
# library, which the allow-list below checks.
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
    """Yield every imported module, type-checking-only imports included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports in src are absolute"
            yield node.module or ""
            # `from sfpubsub import x` may name a package of ours.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_a_module_imports_only_what_its_layer_may(path: Path):
    """The dependency rules of the layer map hold for every import of every module."""
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


# Package with rooms -> their order, and the modules outside of them, which put them together.
ROOMS = {
    "spark": (SPARK_MAY_IMPORT, {"__init__.py"}),
    "emulator": (
        EMULATOR_MAY_IMPORT,
        {"__init__.py", "addresses.py", "remote.py", "server.py", "tls.py"},
    ),
}
IN_ROOMS = [path for path in MODULES if package_of(path) in ROOMS]


@pytest.mark.parametrize("path", IN_ROOMS, ids=lambda path: str(path.relative_to(SRC)))
def test_the_rooms_of_a_package_have_one_order(path: Path):
    """A module of spark/ or emulator/ imports only from its room and those below it."""
    package, room, *rest = path.relative_to(SRC).parts
    may_import, outside = ROOMS[package]
    if not rest:
        assert room in outside, f"{path} is in no room"
        return
    for name in imports(path):
        if name.startswith(f"sfpubsub.{package}."):
            assert name.split(".")[2] in {room, *may_import[room]}, f"{path} imports {name}"


def test_only_the_wire_module_knows_the_messages():
    """transports/wire.py is the one file of the client that imports the protobuf messages."""
    users = {
        str(path.relative_to(SRC))
        for path in MODULES
        if package_of(path) != "emulator"
        and any(name.endswith("pubsub_api_pb2") for name in imports(path))
    }
    assert users == {"transports/wire.py"}


def test_asyncio_is_for_the_asyncio_face_only():
    """The rest of the client works without an event loop, and does not load one."""
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


# The core of the Streaming API's client decides everything and does nothing.
STREAMING_CORE = (
    "bayeux",
    "failures",
    "protocol",
    "subscriptions",
)


@pytest.mark.parametrize("name", STREAMING_CORE)
def test_the_core_of_streaming_does_no_io(name: str):
    """It has no clock, no thread, no socket and no library."""
    for module in imports(SRC / "streaming" / f"{name}.py"):
        top = module.split(".")[0]
        assert top not in {"requests", "urllib3", *_IO}, module
        assert not module.startswith(("sfpubsub.auth", "sfpubsub.streaming.driver")), module


def test_every_package_is_on_the_map():
    """A new package cannot escape the map."""
    packages = {package_of(path) for path in MODULES} - {"__init__", "__main__"}
    assert packages <= MAY_IMPORT.keys()


@pytest.mark.parametrize(
    "path", [*SRC.glob("types/*.py"), SRC / "errors.py", SRC / "durable.py"], ids=lambda p: p.name
)
def test_the_lowest_modules_need_the_standard_library_only(path: Path):
    """They can be imported anywhere, because they import nothing."""
    import sys

    for module in imports(path):
        top = module.split(".")[0]
        assert top == "sfpubsub" or top in sys.stdlib_module_names
