"""Whole programs drawn by chance, as plain data; described and trained with Foreshape, and computed again with torch."""
