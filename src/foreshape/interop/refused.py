"""The refusal of an op or node in a program of another format."""

from foreshape.errors import DescriptionError


class Refused(DescriptionError):
    """An op or a node without a form here; the text is the reason."""
