"""The operators: a folder per family, one class each, written in the language of `foreshape.language.operator`.

Names of this language can be imported from here too.
"""

from foreshape.language.operator import *
from foreshape.language.operator import __all__ as __all__
