"""The sync and the asyncio client have the same members, in the same order."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import sfpubsub

# Sync class -> its methods that wait, which are coroutines in the asyncio class.
FACES = {
    "PubSubClient": {"connect", "get_topic", "get_schema", "publish", "close"},
    "Publisher": {"send", "flush", "close"},
    # `run` is a plain method in both classes; in the asyncio class it returns a coroutine.
    "Subscription": {"wait_open", "next_batch", "drain", "join"},
    "ManagedSubscription": {"wait_open", "next_batch", "commit", "drain", "join"},
}

# The methods that asyncio names differently; all of them but __iter__ wait.
SPELLED = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
    "__next__": "__anext__",
}


def members(cls: type) -> list[str]:
    """Return the member names of *cls* to compare, in order of definition, inherited ones first."""
    found: list[str] = []
    for base in reversed(cls.__mro__[:-1]):
        found += [
            name
            for name in vars(base)
            if name not in found and (not name.startswith("_") or name in {*SPELLED, *dunders()})
        ]
    return found


def dunders() -> list[str]:
    """Return the special methods that the tests compare in addition to the public members."""
    return [*SPELLED.values(), "__init__", "__repr__", "__del__"]


def asyncio_name(member: str, asynchronous: type) -> str:
    """Return the asyncio class's name for a member of the sync class."""
    return member if hasattr(asynchronous, member) else SPELLED.get(member, member)


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Return the name, kind and default of each parameter."""
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def callables(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of *cls* that users call; the constructor is included only for clients."""
    skipped = set() if "Client" in cls.__name__ else {"__init__"}
    return {
        name: getattr(cls, name)
        for name in members(cls)
        if callable(getattr(cls, name)) and name not in skipped
    }


@pytest.mark.parametrize("name", FACES)
def test_sync_and_asyncio_classes_have_the_same_members_in_order(name: str):
    """Both classes have the same public members, defined in the same order."""
    sync, asynchronous = getattr(sfpubsub, name), getattr(sfpubsub, f"Async{name}")
    assert [asyncio_name(member, asynchronous) for member in members(sync)] == members(asynchronous)


@pytest.mark.parametrize("name", FACES)
def test_sync_and_asyncio_methods_have_the_same_parameters(name: str):
    """Every method takes the same arguments, with the same defaults, in both classes."""
    sync, asynchronous = getattr(sfpubsub, name), getattr(sfpubsub, f"Async{name}")
    for member, function in callables(sync).items():
        other = getattr(asynchronous, asyncio_name(member, asynchronous))
        assert parameters(function) == parameters(other), member


@pytest.mark.parametrize("name", FACES)
def test_only_methods_that_wait_are_coroutines(name: str):
    """In an asyncio class, exactly the methods that wait are coroutine functions."""
    asynchronous = getattr(sfpubsub, f"Async{name}")
    waiting = {
        member
        for member, function in callables(asynchronous).items()
        if inspect.iscoroutinefunction(function) and not member.startswith("__")
    }
    assert waiting == FACES[name]


@pytest.mark.parametrize("name", FACES)
def test_properties_are_properties_in_both_classes(name: str):
    """Members such as `pending_count` are read without a call in both classes."""
    sync, asynchronous = getattr(sfpubsub, name), getattr(sfpubsub, f"Async{name}")
    for member in members(sync):
        if isinstance(inspect.getattr_static(sync, member), property):
            assert isinstance(inspect.getattr_static(asynchronous, member), property), member


def test_the_store_classes_have_the_same_methods():
    """`AsyncReplayStore` has the methods of `ReplayStore` as coroutines, with equal parameters."""
    sync, asynchronous = sfpubsub.ReplayStore, sfpubsub.AsyncReplayStore
    for member in ("get", "set"):
        assert parameters(getattr(sync, member)) == parameters(getattr(asynchronous, member))
        assert inspect.iscoroutinefunction(getattr(asynchronous, member))
