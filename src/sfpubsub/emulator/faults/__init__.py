"""Fault injection, and the service's error codes and messages.

This package depends on neither the org nor the wire protocols; both depend on it.
"""

from sfpubsub.emulator.faults.plan import Fault, FaultPlan

__all__ = ["Fault", "FaultPlan"]
