"""Run the command ``sfpubsub`` as ``python -m sfpubsub``."""

from sfpubsub.cli.main import main

main()
