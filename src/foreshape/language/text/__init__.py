"""The text form of a program: printing, and parsing back to an equal program."""
