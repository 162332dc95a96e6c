"""The two faces of the client say the same words, in the same order."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import sfpubsub

# Sync class -> asyncio class, and the methods that wait: coroutines there, plain methods here.
FACES = {
    "PubSubClient": {"connect", "get_topic", "get_schema", "publish", "close"},
    "Publisher": {"send", "flush", "close"},
    # `run` is written once and returns what the face's own half returns, here a coroutine.
    "Subscription": {"next_batch", "drain", "aclose", "join"},
    "ManagedSubscription": {"next_batch", "commit", "drain", "aclose", "join"},
}

# The methods that asyncio spells otherwise; all of them but __iter__ wait.
SPELLED = {
    "close": "aclose",
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
    "__next__": "__anext__",
}


def members(cls: type) -> list[str]:
    """Public names in the order of the file, those of the base class first."""
    found: list[str] = []
    for base in reversed(cls.__mro__[:-1]):
        found += [
            name
            for name in vars(base)
            if name not in found and (not name.startswith("_") or name in {*SPELLED, *dunders()})
        ]
    return found


def dunders() -> list[str]:
    return [*SPELLED.values(), "__init__", "__repr__", "__del__"]


def spelled(member: str, asynchronous: type) -> str:
    """The name of a sync face's member on the other face."""
    return member if hasattr(asynchronous, member) else SPELLED.get(member, member)


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def callables(cls: type) -> dict[str, Callable[..., Any]]:
    """Methods that a user calls; how a subscription is made is the client's business."""
    skipped = set() if "Client" in cls.__name__ else {"__init__"}
    return {
        name: getattr(cls, name)
        for name in members(cls)
        if callable(getattr(cls, name)) and name not in skipped
    }


@pytest.mark.parametrize("name", FACES)
def test_the_faces_have_the_same_names_in_the_same_order(name: str):
    """Who knows one face knows the other; neither has a method that the other lacks."""
    sync, asynchronous = getattr(sfpubsub, name), getattr(sfpubsub, f"Async{name}")
    assert [spelled(member, asynchronous) for member in members(sync)] == members(asynchronous)


@pytest.mark.parametrize("name", FACES)
def test_the_faces_have_the_same_parameters_and_defaults(name: str):
    """Every argument can be moved from one face to the other."""
    sync, asynchronous = getattr(sfpubsub, name), getattr(sfpubsub, f"Async{name}")
    for member, function in callables(sync).items():
        other = getattr(asynchronous, spelled(member, asynchronous))
        assert parameters(function) == parameters(other), member


@pytest.mark.parametrize("name", FACES)
def test_what_waits_is_a_coroutine_and_nothing_else_is(name: str):
    """The faces drift apart where one blocks and the other forgets to."""
    asynchronous = getattr(sfpubsub, f"Async{name}")
    waiting = {
        member
        for member, function in callables(asynchronous).items()
        if inspect.iscoroutinefunction(function) and not member.startswith("__")
    }
    assert waiting == FACES[name]


@pytest.mark.parametrize("name", FACES)
def test_properties_are_properties_of_both(name: str):
    """pending_count and name are read alike."""
    sync, asynchronous = getattr(sfpubsub, name), getattr(sfpubsub, f"Async{name}")
    for member in members(sync):
        if isinstance(inspect.getattr_static(sync, member), property):
            assert isinstance(inspect.getattr_static(asynchronous, member), property), member


def test_the_store_classes_have_the_same_methods():
    """An async store is a store with awaits in it."""
    sync, asynchronous = sfpubsub.ReplayStore, sfpubsub.AsyncReplayStore
    for member in ("get", "set"):
        assert parameters(getattr(sync, member)) == parameters(getattr(asynchronous, member))
        assert inspect.iscoroutinefunction(getattr(asynchronous, member))
