"""The command line. Each command is a thin wrapper around the package.

A command imports its dependencies only when it runs.
"""
