"""The callbacks of `foreshape.training.callbacks`, as ``fs.callbacks``, importable under this name."""

import sys

from foreshape.training import callbacks
from foreshape.training.callbacks import *  # noqa: F403 - for type checkers

sys.modules[__name__] = callbacks  # one module, whichever way it is asked for
