"""Quantization as programs carry it: numbers rounded to few bits and back, with their scales."""
