"""The command line: each command is a thin wrapper around the package, and imports its dependencies
only when it runs.
"""
