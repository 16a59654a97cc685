"""The conditions of guards on fed sizes: solved, in a person's words, with the smallest and the nearest sizes."""
