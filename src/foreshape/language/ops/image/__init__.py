"""Operators on images: patches, sampling at points and in regions, deformed windows, sizes, channels."""
