"""Each operator in the other formats: ONNX's nodes, ATen's calls, PaddlePaddle 3's operators, torch code. One file for each family of operators.

A form one to one is a part of a line in ``operators.txt`` (`rows`). The others are functions in up to five parts of a file: reading from ONNX,
writing to ONNX, reading from torch, from PaddlePaddle 3, and writing torch code. Each stands under a decorator of `rules`, to be found by name. Where to
begin: `activations`, then `rules`.
"""
