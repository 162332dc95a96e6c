"""A deterministic simulation of the client programs and of the service, in virtual time.

``python -m tests.simulation --seed N --days D`` runs one seed. docs/explanation/simulation.md says
what is simulated, what is checked, and what has been found.
"""
