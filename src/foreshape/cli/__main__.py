"""``python -m foreshape.cli``: the same as the ``foreshape`` command."""

from foreshape.cli import main

main()
