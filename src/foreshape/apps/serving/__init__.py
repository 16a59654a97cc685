"""Saved networks behind HTTP, by the Open Inference Protocol, version 2. Needs the extra ``serve``."""
