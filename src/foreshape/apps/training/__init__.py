"""Training: the loop, its data, history, callbacks and checkpoints; predictions and evaluations; and `infer_shape`."""

from foreshape.apps.training import callbacks
from foreshape.apps.training.checkpoint.checkpoint import Checkpoint
from foreshape.apps.training.history import History
from foreshape.apps.training.loop import train
from foreshape.apps.training.prediction import evaluate, predict
from foreshape.apps.training.program import infer_shape
from foreshape.apps.training.training_programs import TrainingProgram, training_program

__all__ = ["Checkpoint", "History", "TrainingProgram", "callbacks", "evaluate", "infer_shape", "predict", "train", "training_program"]
