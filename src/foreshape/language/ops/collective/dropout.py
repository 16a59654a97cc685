"""Dropout of a sharded tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, attribute
from foreshape.language.operator.samples import f32, i32, sample
from foreshape.language.operator.schema import Again
from foreshape.language.ops.nn.dropout import Dropout
from foreshape.machine.communication.process_group import team_of

if TYPE_CHECKING:
    from torch import Generator

_APART = 0x9E3779B97F4A7C15
"""The distance of the seeds of neighbouring ranks, an odd number."""


class CDropout(Dropout):
    """Dropout of a part of X per rank: ranks with the same random state each zero elements of their own.

    One number is drawn, the same on every rank. The rank's own numbers follow from it, so the next draw is the same on all ranks again.
    """

    type = "c_dropout"
    again = Again("Out", "c_dropout_grad", {"Mask": "Mask", "Out@GRAD": "X"}, "X@GRAD")
    ring_id = attribute(AttrType.INT, 0, low=0, doc="the process group")

    def _generator(self, Seed: Tensor | None) -> Generator | None:
        shared = super()._generator(Seed)
        team = team_of(self.ring_id, type=self.type)
        if team is None:
            return shared
        device = "cpu" if shared is None else shared.device
        drawn = int(torch.randint(0, 1 << 62, (1,), generator=shared, device=device).item())
        rank_generator = torch.Generator(device)
        rank_generator.manual_seed((drawn + team.rank * _APART) % (1 << 63))
        return rank_generator

    samples = [
        sample(X=f32(2, 3, 5), dropout_prob=0.3, fix_seed=True, seed=5),
        sample(X=f32(2, 3, 5), dropout_prob=0.3, Seed=i32(1, data=[11]), dropout_implementation="upscale_in_train"),
        sample(X=f32(2, 3, 5), dropout_prob=0.3, is_test=True),
        sample(X=f32(0, 3), fix_seed=True, seed=5),
    ]
