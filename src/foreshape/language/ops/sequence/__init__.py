"""Operators on ragged values, with sequences of different lengths as rows: pooling, padding, slicing, joining, attention."""
