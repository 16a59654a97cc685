"""Training: the loop, its data, history and checkpoints; and `infer_shape`, which infers again what a variable depends on."""

from foreshape.training.checkpoint import Checkpoint
from foreshape.training.history import History
from foreshape.training.loop import train
from foreshape.training.program import infer_shape

__all__ = ["Checkpoint", "History", "infer_shape", "train"]
