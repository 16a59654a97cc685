"""Decisions over whole sequences: chains (`crf`), alignments (`alignments`), the words of beams (`gather_tree`), and the edit distance (`sequence_metrics`)."""
