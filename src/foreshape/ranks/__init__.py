"""The ranks of a run: joined as torchrun started them, looked after, and named where one of them fails. On `torch.distributed`."""

from foreshape.ranks.join import Ranks, alone, join

__all__ = ["Ranks", "alone", "join"]
