"""Tools for testing code that uses sfpubsub: an in-process emulator and a scripted transport.

::

    from sfpubsub.testing import EmulatorServer

    with EmulatorServer(data_dir=tmp_path) as emulator:
        emulator.publish("/event/Order_Event__e", [{"Order_Number__c": "1"}])
        ...

`EmulatorServer` needs the extra ``sfpubsub[emulator]``. `RemoteEmulator` controls an emulator that
runs in another process.
"""

from sfpubsub.emulator.faults import Fault, FaultPlan
from sfpubsub.emulator.org.batch import Draft, Published
from sfpubsub.emulator.org.settings import Settings as EmulatorSettings
from sfpubsub.emulator.remote import RemoteEmulator
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.transports.memory import MemoryCall, MemoryTransport

__all__ = [
    "Draft",
    "EmulatorServer",
    "EmulatorSettings",
    "Fault",
    "FaultPlan",
    "MemoryCall",
    "MemoryTransport",
    "Published",
    "RemoteEmulator",
]
