"""A Salesforce org for the tests of a pytest suite; see docs/how-to/testing-python.md.

pytest loads this module in every run where sfpubsub is installed, so it imports nothing expensive
until a fixture is used.

    salesforce_org          a fresh org for one test, in this process, in milliseconds
    salesforce_faults       the org's fault plan; the test fails if a fault did not occur
    salesforce_clock        the org's clock; time stands still unless the test jumps ahead
    salesforce_org_options  arguments of the org; override the fixture to change them
    salesforce_emulator     one emulator for the whole run, shared by all xdist workers
    salesforce_emulator_options   options of the emulator; override the fixture to change them
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sfpubsub.emulator.faults import FaultPlan
    from sfpubsub.emulator.org.clock import ManualClock
    from sfpubsub.emulator.server import EmulatorServer
    from sfpubsub.pytest_plugin.fresh import FreshOrgs
    from sfpubsub.pytest_plugin.lifeline import EmulatorRun
    from sfpubsub.pytest_plugin.run import RunningEmulator

_DIRECTORY = "sfpubsub_emulator"
"""Key under which the xdist controller passes the emulator's directory to its workers."""

_RUN: pytest.StashKey[EmulatorRun] = pytest.StashKey()
_ORG: pytest.StashKey[FreshOrgs] = pytest.StashKey()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the directory of the run's emulator to an xdist worker. The emulator may start later."""
    node.workerinput[_DIRECTORY] = str(_run(node.config).directory)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the run's emulator. An xdist worker, which does not own the emulator, does nothing."""
    run = config.stash.get(_RUN, None)
    if run is not None:
        run.end()
    orgs = config.stash.get(_ORG, None)
    if orgs is not None:
        orgs.close()


@pytest.fixture(scope="session")
def salesforce_emulator_options() -> Sequence[str]:
    """Options of `sfpubsub emulator` for `salesforce_emulator`.

    Override this fixture to change them.
    """
    return ()


@pytest.fixture(scope="session")
def salesforce_emulator(
    request: pytest.FixtureRequest, salesforce_emulator_options: Sequence[str]
) -> Iterator[RunningEmulator]:
    """One emulator for the whole run, in a separate process shared by all workers.

    From the first use of this fixture until the end of the run, the environment variables
    `SFPUBSUB_…` point clients to the emulator.
    """
    from sfpubsub.pytest_plugin.run import start_or_find

    shared = getattr(request.config, "workerinput", {}).get(_DIRECTORY)
    directory = Path(shared) if shared else _run(request.config).directory
    emulator = start_or_find(directory, salesforce_emulator_options)
    with pytest.MonkeyPatch.context() as patch:
        _point_at(emulator.environment, patch)
        yield emulator


@pytest.fixture
def salesforce_org_options() -> dict[str, Any]:
    """Arguments of `EmulatorServer` for `salesforce_org`; override this fixture to change them."""
    return {}


@pytest.fixture
def salesforce_clock() -> ManualClock:
    """The clock of the test's org: time stands still until `jump(seconds)` advances it."""
    from sfpubsub.emulator.org.clock import ManualClock

    return ManualClock()


@pytest.fixture
def salesforce_faults() -> Iterator[FaultPlan]:
    """The fault plan of the test's org; the test fails if one of the faults did not occur."""
    from sfpubsub.emulator.faults import FaultPlan

    plan = FaultPlan()
    yield plan
    plan.assert_consumed()


@pytest.fixture
def salesforce_org(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    salesforce_org_options: dict[str, Any],
) -> Iterator[EmulatorServer]:
    """A fresh org for this test, in this process.

    The environment variables `SFPUBSUB_…` point clients to the org.
    """
    from sfpubsub.pytest_plugin.fresh import FreshOrgs
    from sfpubsub.pytest_plugin.run import environment_of

    options = dict(salesforce_org_options)
    # If the test uses the plan or the clock fixture, pass it to the org.
    for name, fixture in (("faults", "salesforce_faults"), ("clock", "salesforce_clock")):
        if fixture in request.fixturenames:
            options[name] = request.getfixturevalue(fixture)
    orgs = request.config.stash.setdefault(_ORG, FreshOrgs())
    with orgs.fresh(options) as org:
        _point_at(environment_of(org), monkeypatch)
        yield org


def _run(config: pytest.Config) -> EmulatorRun:
    """Return this run's `EmulatorRun`, creating it on first use."""
    from sfpubsub.pytest_plugin.lifeline import EmulatorRun

    if _RUN not in config.stash:
        config.stash[_RUN] = EmulatorRun()
    return config.stash[_RUN]


def _point_at(environment: Mapping[str, str], patch: pytest.MonkeyPatch) -> None:
    """Set the variables in *environment*, and remove other environment variables of sfpubsub."""
    from sfpubsub.pytest_plugin.run import KEPT

    for name in list(os.environ):
        if name.startswith("SFPUBSUB_") and name not in KEPT:
            patch.delenv(name)
    for name, value in environment.items():
        patch.setenv(name, value)
