"""The command line: thin commands over the package; each imports what it needs when it runs."""
