"""Each operator in the other formats: ONNX's nodes, ATen's calls, torch code. One file for each family of operators.

A file has up to four parts: reading from ONNX, writing to ONNX, reading from torch, writing torch code. Each function stands under a decorator of `rules`,
which finds it by name. Where to begin: `activations`, then `rules`.
"""
