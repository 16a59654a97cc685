"""Decisions over whole sequences: chains (`crf`), alignments (`alignments`), beams (`beam_search`), and their scores (`sequence_metrics`)."""
