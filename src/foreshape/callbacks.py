"""The callbacks of `foreshape.training.callbacks`, as ``fs.callbacks``, under a name that can be imported from."""

import sys

from foreshape.training import callbacks
from foreshape.training.callbacks import *  # noqa: F403 - for those who check types

sys.modules[__name__] = callbacks  # one module, whichever way it is asked for
