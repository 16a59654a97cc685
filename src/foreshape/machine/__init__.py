"""Kernels, the process that runs them, and its messages to other ranks; without operators and programs.

In come tensors, sizes and settings; out go results, the bytes that they take, and errors that name a rank.

- `kernels`: the parts of which operators' kernels are made, and fused kernels, each with its effects on memory. Begin with `kernels.fused`.
- `process`: threads, pages, devices and the memory of this process; the limit and the generator of the step that runs.
- `communication`: how ranks join, their process groups on `torch.distributed`, and their last words.
"""
