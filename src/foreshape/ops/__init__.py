"""The operators: a folder per family, one class each, written in the language of `foreshape.operator`.

Names of this language can be imported from here too.
"""

from foreshape.operator import *
from foreshape.operator import __all__ as __all__
