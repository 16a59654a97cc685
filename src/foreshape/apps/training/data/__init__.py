"""Training data as batches: shuffled, augmented, or held out for validation."""
