"""What guards demand of the sizes that are fed: solved, in a person's words, with the smallest and the nearest sizes."""
