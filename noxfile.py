"""The quick tests on each supported Python, with the newest and the oldest requirements.

``uvx nox`` runs all of them, and leaves out each Python that the machine does not have;
``uvx nox --python 3.12`` runs those of one version.
"""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "uv"


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
@nox.parametrize("resolution", ["highest", "lowest-direct"])
def quick(session: nox.Session, resolution: str) -> None:
    """Install the versions that *resolution* selects, without constraints, and run the tests."""
    session.install(
        *("--resolution", resolution, "--group", "test", "--editable", ".[emulator,json]")
    )
    session.run("python", "-m", "tests.quick", *session.posargs)
