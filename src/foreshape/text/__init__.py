"""Print a program as text, and parse that back to an equal program."""
