"""What looking at things is made of: words for numbers, markup that escapes whatever it is given, layered drawings. It knows no programs."""

from foreshape.pictures.markup import Markup, escape, folded, markup_table, tag
from foreshape.pictures.picture import Picture

__all__ = ["Markup", "Picture", "escape", "folded", "markup_table", "tag"]
