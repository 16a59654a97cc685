"""Processes and their messages: the ranks of a run, joined as torchrun started them, watched, and named if one fails; process groups."""
