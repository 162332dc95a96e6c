"""``python -m sfpubsub`` is the command ``sfpubsub``."""

from sfpubsub.cli.main import main

main()
