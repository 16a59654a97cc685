"""Losses and measures: cross entropies, regressions, losses of many classes (`nce`, `hierarchical_sigmoid`), and `metrics`."""
