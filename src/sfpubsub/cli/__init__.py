"""The command-line interface. Each command is a thin wrapper around the package.

A command's module, with its dependencies, is imported only when the command is used.
"""
