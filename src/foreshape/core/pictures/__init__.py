"""The parts of views: words for numbers, markup that escapes its texts, layered drawings. They know no programs."""

from foreshape.core.pictures.markup import Markup, escape, folded, markup_table, tag
from foreshape.core.pictures.picture import Picture

__all__ = ["Markup", "Picture", "escape", "folded", "markup_table", "tag"]
