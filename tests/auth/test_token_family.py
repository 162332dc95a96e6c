"""Tests of the decisions about refresh tokens: which one is used, and what is stored."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace

import pytest

from sfpubsub.auth.token_family import REUSED_FOR, TokenFamily, fingerprint, newest_family

GIVEN = "given-refresh-token"
NOW = 1_700_000_000.0


def begun() -> TokenFamily:
    """Return the family of a configured token that was not used yet."""
    return newest_family(GIVEN, None, None)


def response(number: int, **changed: object) -> dict[str, object]:
    """Return a token response with a new refresh token."""
    return {
        "access_token": f"access-{number}",
        "refresh_token": f"refresh-{number}",
        "instance_url": "https://x",
        "scope": "api",
        **changed,
    }


def test_the_configured_token_begins_a_family():
    """Without a stored family, the configured token is used, and there is no access token."""
    family = begun()
    assert (family.refresh_token, family.number) == (GIVEN, 0)
    assert not family.is_reusable(None, NOW)


def test_an_answer_replaces_both_tokens():
    """After an answer, its refresh token is the next, and its access token can be used."""
    family = begun().asked(NOW, "here").answered(response(1), NOW)
    assert (family.refresh_token, family.number) == ("refresh-1", 1)
    assert family.root == fingerprint(GIVEN)
    assert family.answer == {"access_token": "access-1", "instance_url": "https://x"}
    assert family.is_rotated
    assert family.is_reusable(None, NOW)


@pytest.mark.parametrize("rotated", [None, "", 5, ["x"], GIVEN])
def test_an_answer_without_a_new_refresh_token_keeps_the_old_one(rotated):
    """An app without rotation returns no refresh token, or the same one: it is used again."""
    family = begun().answered(response(1, refresh_token=rotated), NOW)
    assert family.refresh_token == GIVEN
    assert not family.is_rotated


def test_the_refresh_token_of_an_unusable_answer_is_kept():
    """Even if the access token of an answer is not valid, the refresh token before it is used."""
    family = begun().answered(response(1), NOW, is_usable=False)
    assert family.refresh_token == "refresh-1"
    assert not family.is_reusable(None, NOW)


@pytest.mark.parametrize(
    ("refused", "age", "reusable"),
    [
        (None, 0.0, True),
        ("another", REUSED_FOR - 1, True),
        ("access-1", 0.0, False),  # the service refuses this one
        (None, REUSED_FOR, False),  # the org may have ended its session
        (None, -1.0, False),  # a clock was wrong
    ],
)
def test_an_access_token_is_reused_if_it_is_new_and_not_refused(refused, age, reusable):
    """The stored access token is used without a request unless it was refused or is too old."""
    family = begun().answered(response(1), NOW)
    assert family.is_reusable(refused, NOW + age) is reusable


def test_the_file_wins_if_it_descends_from_the_configured_token():
    """A stored family is continued if the configured token is its first or its newest one, however
    often it was rotated; a family of another token is not.
    """
    family = begun()
    for number in range(1, 4):
        family = family.answered(response(number), NOW)
    assert newest_family(GIVEN, family, None) is family
    assert newest_family("refresh-3", family, None) is family
    other = newest_family("new-token", family, None)
    assert (other.refresh_token, other.number) == ("new-token", 0)


def test_the_newest_of_file_and_memory_wins():
    """What this process remembers wins only if it is newer, because it could not be stored, or the
    file was removed or belongs to another token.
    """
    first = begun().answered(response(1), NOW)
    second = first.answered(response(2), NOW)
    assert newest_family(GIVEN, first, second) is second
    assert newest_family(GIVEN, second, first) is second
    assert newest_family(GIVEN, None, second) is second
    assert newest_family(GIVEN, newest_family("other", None, None), second) is second
    same = replace(first, asked_at=NOW)  # another process noted a request
    assert newest_family(GIVEN, same, first) is same


def test_a_request_without_an_answer_is_in_doubt():
    """A request that was noted and has no stored answer is visible to the next process."""
    family = begun().asked(NOW, "here")
    assert family.is_in_doubt
    assert not family.answered(response(1), NOW).is_in_doubt


def test_the_stored_text_restores_the_family():
    """A family is the same after it was stored and read again."""
    family = begun().answered(response(1), NOW).asked(NOW + 1, "here")
    assert TokenFamily.from_text(family.to_text()) == family


GOOD = json.loads(begun().answered(response(1), NOW).to_text())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret-1",
        "[]",
        "{}",
        json.dumps({**GOOD, "format": 2}),
        json.dumps({name: value for name, value in GOOD.items() if name != "root"}),
        json.dumps({**GOOD, "more": "secret-1"}),
        json.dumps({**GOOD, "refresh_token": ""}),
        json.dumps({**GOOD, "refresh_token": ["secret-1"]}),
        json.dumps({**GOOD, "number": True}),
        json.dumps({**GOOD, "answer": "secret-1"}),
        json.dumps({**GOOD, "answer": {"access_token": 1}}),
        json.dumps({**GOOD, "answered_at": "x"}),
        json.dumps({**GOOD, "answered_at": float("nan")}),
        json.dumps({**GOOD, "asked_at": 1e300}),
        "[" * 100_000,
    ],
)
def test_a_damaged_text_is_refused_without_quoting_it(text):
    """A damaged text raises an error that does not contain it."""
    with pytest.raises(ValueError, match=r"it|field") as caught:
        TokenFamily.from_text(text)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_family_does_not_reveal_its_tokens():
    """The repr has no token, and a family cannot be pickled."""
    family = begun().answered(response(1), NOW)
    assert repr(family) == "TokenFamily(number=1)"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(family)


class Org:
    """A model of an app with refresh token rotation."""

    def __init__(self) -> None:
        self.newest, self.number = GIVEN, 0
        self.used: set[str] = set()
        self.is_revoked = False
        self.valid: set[str] = set()  # access tokens
        self.replays = 0

    def refresh(self, token: str) -> dict[str, object] | None:
        """Return a token response; None if the token is refused."""
        if token in self.used:
            self.replays += 1
            self.is_revoked = True
            self.valid.clear()
        if self.is_revoked or token != self.newest:
            return None
        self.used.add(token)
        self.number += 1
        found = response(self.number)
        self.newest = f"refresh-{self.number}"
        self.valid.add(f"access-{self.number}")
        return found


class Walk:
    """Several processes of one user, which sign in, fail and are killed at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.org = Org()
        self.file: TokenFamily | None = None
        self.memory: list[TokenFamily | None] = [None] * 3
        self.access = [""] * 3
        self.now = NOW
        self.is_lost = False  # whether the newest refresh token is known to nobody, or to one only
        self.is_over = False

    def step(self) -> None:
        kind = self.random.choice(["sign in", "sign in", "sign in", "expire", "wait"])
        if kind == "wait":
            self.now += self.random.choice([1.0, REUSED_FOR])
        elif kind == "expire":
            self.org.valid.clear()
        else:
            self.sign_in(self.random.randrange(3))

    def sign_in(self, who: int) -> None:
        held = self.access[who]
        refused = held if held and held not in self.org.valid else None
        family = newest_family(GIVEN, self.file, self.memory[who])
        if family.is_reusable(refused, self.now):
            self.file = self.memory[who] = family
            self.access[who] = family.answer["access_token"]
            assert self.access[who] != refused
            return None
        self.file = family.asked(self.now, "here")
        if self.happens():  # killed before the request
            return self.kill(who)
        replays = self.org.replays
        found = self.org.refresh(family.refresh_token)
        if found is None:
            # Nobody can sign in any more, and the process can say why.
            assert self.is_lost
            assert family.is_in_doubt
            self.file, self.is_over = family, True
            return None
        assert self.org.replays == replays
        if self.happens():  # killed before the answer was stored
            self.is_lost = True
            return self.kill(who)
        self.memory[who] = answered = family.answered(found, self.now)
        if self.happens():  # the disk was full
            self.is_lost = True
            return None
        self.file, self.is_lost = answered, False
        self.access[who] = answered.answer["access_token"]
        return None

    def happens(self) -> bool:
        return self.random.random() < 0.05

    def kill(self, who: int) -> None:
        self.memory[who], self.access[who] = None, ""


def test_random_walks_of_three_processes():
    """However three processes sign in, expire and are killed, no refresh token is used twice unless
    an answer was lost before it was stored; then the family is in doubt when it is refused.
    """
    ended = replays = answers = 0
    for seed in range(300):
        walk = Walk(seed)
        for _ in range(60):
            walk.step()
            if walk.is_over:
                break
        ended += walk.is_over
        replays += walk.org.replays
        answers += walk.org.number
    assert 0 < ended < 300  # both kinds of walks occur
    assert replays == ended
    assert answers > 1000
