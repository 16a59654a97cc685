"""Decisions over whole sequences: chains (`crf`, `viterbi`, `ctc`), beams (`beam_search`, `gather_tree`), and their scores (`edit_distance`, `chunk_eval`)."""
