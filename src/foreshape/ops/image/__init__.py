"""Images taken apart and read at places: patches, sampling at points and in regions, deformed windows, sizes, channels."""
