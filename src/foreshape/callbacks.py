"""The callbacks of `foreshape.apps.training.callbacks`, as ``fs.callbacks``, importable under this name."""

import sys

from foreshape.apps.training import callbacks
from foreshape.apps.training.callbacks import *  # noqa: F403 - for type checkers

sys.modules[__name__] = callbacks  # one module, whichever way it is asked for
