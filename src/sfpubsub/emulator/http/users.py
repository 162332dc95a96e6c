"""Users as records of the REST API. `org.accounts` stores them; they cannot be changed here."""

from __future__ import annotations

from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import RestRefused, asked_of, authorised, missing
from sfpubsub.emulator.org.sessions import eighteen


def read(call: Call) -> Answer:
    """GET …/sobjects/User/<Id>?fields=…: return the named fields of a user, or all fields. The
    official CLI does so after each sign-in.
    """
    version = authorised(call)
    given = call.parts["id"]
    user = call.world.accounts.by_id(eighteen(given) if len(given) == 15 else given)
    if user is None:
        raise missing()
    known = {
        "Id": user.user_id,
        "Username": user.username,
        "Name": user.username,
        "Email": user.username,
        "IsActive": user.active,
    }
    names = ",".join(asked_of(call).get("fields", [])).split(",")
    wanted = [name.strip() for name in names if name.strip()] or list(known)
    for name in wanted:
        if name not in known:
            text = f"No such column '{name[:80]}' on sobject of type User"
            raise RestRefused("INVALID_FIELD", text)
    url = f"/services/data/v{version}.0/sobjects/User/{user.user_id}"
    shown = {name: known[name] for name in wanted}
    return json_answer({"attributes": {"type": "User", "url": url}, **shown})
