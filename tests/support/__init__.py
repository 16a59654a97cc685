"""What tests of several rooms share, and the scripts that they start: ``from support.harness import ...``, since ``tests/`` is on the path."""
