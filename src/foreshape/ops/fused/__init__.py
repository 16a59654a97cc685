"""What several operators do, in one, as programs that were rewritten for a fast run have it; for inference."""
