"""Quantization as programs carry it: numbers rounded to few bits and back, with the scales that belong to them."""
