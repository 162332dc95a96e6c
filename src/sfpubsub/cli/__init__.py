"""The command line: thin commands over the package. Each command imports what it needs when it
runs.
"""
