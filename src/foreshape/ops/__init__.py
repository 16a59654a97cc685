"""The operators: a folder per family, one class each. `foreshape.operator` is the language in which they are written.

Names of that language can be imported from here too.
"""

from foreshape.operator import *  # noqa: F403
from foreshape.operator import __all__ as __all__
