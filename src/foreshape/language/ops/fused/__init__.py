"""Several operators in one, as in programs rewritten for fast inference."""
