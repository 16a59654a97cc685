"""Forecasts of the memory that eager torch takes on a GPU for a training step and for a run over many batches, without a GPU."""
