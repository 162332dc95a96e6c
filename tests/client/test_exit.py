"""Programs that close nothing, and forked children, still exit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ..cli.test_cli import environment
from ..conftest import wait_for_exit
from .test_managed import NAME, TOPIC, orders

SYNC = f"""
from sfpubsub import PubSubClient
client = PubSubClient.from_env()
subscription = client.subscribe("{TOPIC}", replay="earliest")
managed = client.subscribe_managed("{NAME}")
print(len(subscription.next_batch(20)))
"""

ASYNC = f"""
import asyncio
from sfpubsub import AsyncPubSubClient
async def main():
    client = AsyncPubSubClient.from_env()
    subscription = client.subscribe("{TOPIC}", replay="earliest")
    print(len(await subscription.next_batch(20)))
asyncio.run(main())
"""


FORK = f"""
import os
from sfpubsub import PubSubClient
client = PubSubClient.from_env()
subscription = client.subscribe("{TOPIC}", replay="earliest")
print(len(subscription.next_batch(20)), flush=True)
child = os.fork()
if child:
    os.waitpid(child, 0)
"""


# In a forked child every call of either client is refused, and none hangs. The asyncio client gets
# a loop of its own there. The program prints the number of refused calls of each client.
USED_BY_A_CHILD = f"""
import asyncio, os, signal
from sfpubsub import AsyncPubSubClient, LocalProtocolError, PubSubClient
sync, other = PubSubClient.from_env(), AsyncPubSubClient.from_env()
sync.get_topic("{TOPIC}"), asyncio.run(other.get_topic("{TOPIC}"))
calls = [
    lambda client: client.connect(),
    lambda client: client.get_topic("{TOPIC}"),
    lambda client: client.publish("{TOPIC}", [dict(Order_Number__c="1")]),
    lambda client: client.subscribe("{TOPIC}"),
    lambda client: client.subscribe_managed("{NAME}"),
]
async def use(client, call):
    waiting = call(client)
    if asyncio.iscoroutine(waiting):
        await waiting
refused = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(30)
    for client in (sync, other):
        for call in calls:
            try:
                asyncio.run(use(client, call))
            except LocalProtocolError as error:
                assert "create a new client after the fork" in str(error), error
                os.write(refused[1], b".")
    os._exit(0)
os.waitpid(child, 0)
os.close(refused[1])
print(len(os.read(refused[0], 100)) // 2)
"""


def run(emulator, code: str, times: int) -> None:
    """Run the program *code* as often as *times* says; each run must print "5" and exit with 0."""
    for _ in range(times):
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", code],
            env={**os.environ, **environment(emulator)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        output, errors = wait_for_exit(process)
        assert (process.returncode, output) == (0, "5\n"), errors


@pytest.mark.parametrize("code", [SYNC, ASYNC], ids=["sync", "asyncio"])
def test_a_program_that_closes_nothing_exits(run_emulator, code):
    """A program exits even if it closes neither its client nor its subscriptions.

    A gRPC call that is still open can otherwise hang the interpreter at exit.
    """
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(5))
    run(emulator, code, 10)


def test_forked_child_exits(run_emulator):
    """A forked child has none of the parent's threads, so it must not wait for them at exit."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(5))
    run(emulator, FORK, 2)


def test_forked_child_cannot_use_the_clients(run_emulator):
    """Without the parent's threads a call might hang, so each call in the child is refused."""
    run(run_emulator(), USED_BY_A_CHILD, 1)


@pytest.mark.slow
@pytest.mark.parametrize("code", [SYNC, ASYNC], ids=["sync", "asyncio"])
def test_five_hundred_programs_that_close_nothing_exit(run_emulator, code):
    """All 500 programs exit: a hang that occurs in one run out of a hundred would be found."""
    emulator = run_emulator()
    emulator.publish(TOPIC, orders(5))
    run(emulator, code, 250)
