"""``python -m foreshape``: the same as the ``foreshape`` command."""

from foreshape.apps.cli import main

main()
