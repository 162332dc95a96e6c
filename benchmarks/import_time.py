"""Time of `import sfpubsub`, relative to `import grpc` in the same run.

Prints one JSON line. Each import runs in a new interpreter, and the modules are interleaved. The
medians exclude the start of the interpreter.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

ROUNDS = 15  # enough for a stable median on a busy machine

CODE = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def seconds(module: str) -> float:
    """Return the seconds that a new interpreter takes to import *module*."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Measure all modules and print the result."""
    times: dict[str, list[float]] = {"grpc": [], "sfpubsub": [], "sfpubsub.client.client": []}
    for _ in range(ROUNDS):
        for module, values in times.items():
            values.append(seconds(module))
    medians = {module: statistics.median(values) for module, values in times.items()}
    print(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "rounds": ROUNDS,
                **{f"{module}_ms": round(1000 * median, 1) for module, median in medians.items()},
                "ratio_package": round(medians["sfpubsub"] / medians["grpc"], 3),
                "ratio_client": round(medians["sfpubsub.client.client"] / medians["grpc"], 3),
            }
        )
    )


if __name__ == "__main__":
    main()
