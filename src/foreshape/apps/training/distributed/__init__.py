"""Training over several ranks: the session of one rank, its share of each batch, and what its steps take."""
