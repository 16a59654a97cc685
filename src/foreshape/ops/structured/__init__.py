"""What decides over whole sequences: chains (`crf`, `viterbi`, `ctc`), beams (`beam_search`, `gather_tree`), and how well they did
(`edit_distance`, `chunk_eval`)."""
