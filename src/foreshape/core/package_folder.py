"""The folder of this package, by which a line of the user's is told from one of ours."""

from __future__ import annotations

import os
import sys
from typing import Final

PACKAGE: Final = os.path.abspath(sys.modules[__name__.partition(".")[0]].__path__[0]) + os.sep
"""The folder, with a separator at its end."""
