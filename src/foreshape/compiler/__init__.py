"""From a program to the kernel calls of a step, with their memory and their time: still without PyTorch.

In goes a program with the variables to fetch; out come calls in an order, the memory of each of their values, and a time.

- `lowering`: the calls of a step; in `lowering.fusion` rewrites join them to fused kernels. Begin with `lowering.lower`.
- `memory`: lifetimes, reuse in place, the peak as a formula of sizes, the layout of the arena, recomputation.
- `cost`: the time of a step by a calibration, plans for many ranks.
"""
