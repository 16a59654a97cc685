"""Training: the loop, its data, history, callbacks and checkpoints; predictions and evaluations; and `infer_shape`."""

from foreshape.training import callbacks
from foreshape.training.checkpoint.checkpoint import Checkpoint
from foreshape.training.history import History
from foreshape.training.loop import train
from foreshape.training.prediction import evaluate, predict
from foreshape.training.program import infer_shape
from foreshape.training.training_programs import TrainingProgram, training_program

__all__ = ["Checkpoint", "History", "TrainingProgram", "callbacks", "evaluate", "infer_shape", "predict", "train", "training_program"]
