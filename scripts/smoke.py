"""Check that an installed sfpubsub works. scripts/package.sh runs this in new environments.

Without an argument, the environment must contain only the package and its requirements. With the
argument ``emulator``, it must also contain the extras arrow, emulator, json and jwt. Then an event
is published, received and decoded.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pkgutil
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

TOPIC = "/event/Order_Event__e"

# Prefixes of modules that need extras, or are not meant to be imported directly.
EXTRAS = ("sfpubsub.spark", "sfpubsub.emulator", "sfpubsub.testing", "sfpubsub.pytest_plugin")
EXTRAS += ("sfpubsub.__main__",)


def run(*arguments: str) -> str:
    """Run the installed command, and return its standard output."""
    command = Path(sys.executable).with_name("sfpubsub")
    return subprocess.run(
        [command, *arguments], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def check_bare() -> None:
    """Import every module that needs no extra, and run the command."""
    import sfpubsub

    assert sfpubsub.__version__ == version("sfpubsub")
    assert files("sfpubsub").joinpath("py.typed").is_file()
    assert files("sfpubsub_grpc").joinpath("pubsub_api_pb2.pyi").is_file()
    for name in sfpubsub.__all__:
        assert getattr(sfpubsub, name) is not None
    for module in pkgutil.walk_packages(sfpubsub.__path__, "sfpubsub."):
        if not module.name.startswith(EXTRAS):
            with contextlib.suppress(sfpubsub.MissingExtraError):  # it names the extra
                importlib.import_module(module.name)
    assert run("--version") == f"sfpubsub, version {sfpubsub.__version__}, Python decoder\n"
    assert "subscribe" in run("--help")
    for name in ("pyspark", "pytest", "pyarrow"):
        assert importlib.util.find_spec(name) is None, name


def check_emulator() -> None:
    """Import jwt, receive an event from an emulator in this process, and convert it to Arrow."""
    import jwt

    from sfpubsub import PubSubClient, Session
    from sfpubsub.avro.arrow import record_batches
    from sfpubsub.testing import EmulatorServer

    assert jwt.__version__
    with tempfile.TemporaryDirectory() as directory, EmulatorServer(directory) as emulator:
        emulator.publish(TOPIC, [{"Order_Number__c": "1"}])
        session = Session(emulator.access_token, emulator.instance_url, emulator.tenant_id)
        with (
            PubSubClient(session, endpoint=emulator.grpc_target, insecure="1") as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            batch = subscription.next_batch(timeout=60)
            assert batch is not None
            assert [event.value["Order_Number__c"] for event in batch] == ["1"]
            (rows,) = record_batches(batch)
            assert rows.column("value").to_pylist()[0]["Order_Number__c"] == "1"


if __name__ == "__main__":
    warnings.simplefilter("error")
    # The oldest grpcio for Python 3.12 calls what that version warns of.
    warnings.filterwarnings("ignore", r"datetime\.datetime\.utcnow", DeprecationWarning)
    check_emulator() if sys.argv[1:] == ["emulator"] else check_bare()
