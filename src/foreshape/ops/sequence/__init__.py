"""Operators of ragged values, whose rows are sequences of different lengths: pooled, padded, sliced, joined, attended to."""
