"""The ranks of a run: joined as torchrun started them, watched, and named if one fails. On `torch.distributed`."""

from foreshape.ranks.join import Ranks, alone, join

__all__ = ["Ranks", "alone", "join"]
