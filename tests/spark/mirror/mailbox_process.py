"""One side of a mailbox in a process of its own, to be killed.

``python -m tests.spark.mirror.mailbox_process put|take DIRECTORY LOG``: puts signals, or takes
them, without an end, and writes the id of each to LOG once it is put, or before it is marked.
"""

from __future__ import annotations

import os
import sys

from sfpubsub.spark.mirror.mailbox import Mailbox, Signal
from sfpubsub.spark.tables.target import Place


def main() -> None:
    side, directory, log = sys.argv[1:]
    mailbox = Mailbox(None, Place.parse(directory, "delta"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        if side == "put":
            signal = Signal("reread", "Account")
            mailbox.put(signal)
            os.write(descriptor, f"{signal.id}\n".encode())
        else:
            for signal in mailbox.waiting():
                os.write(descriptor, f"{signal.id}\n".encode())
                mailbox.done([signal.id])


if __name__ == "__main__":
    main()
