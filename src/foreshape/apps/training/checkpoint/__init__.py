"""Checkpoints: their files, the contents with types and ranges, and the resumption of a run from them."""
