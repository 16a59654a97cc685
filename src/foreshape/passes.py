"""The passes of `foreshape.transforms.passes`, as ``fs.passes``."""

from foreshape.transforms.passes import *  # noqa: F403
from foreshape.transforms.passes import __all__ as __all__
