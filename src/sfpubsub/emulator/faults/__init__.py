"""How calls fail: what the service says when it refuses, and failures that a test programs.

Nothing of the org or of a wire is known here; both look here.
"""

from sfpubsub.emulator.faults.plan import Fault, FaultPlan

__all__ = ["Fault", "FaultPlan"]
