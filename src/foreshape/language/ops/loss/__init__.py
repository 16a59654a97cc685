"""Losses and measures: cross entropies, regressions, and `metrics`."""
