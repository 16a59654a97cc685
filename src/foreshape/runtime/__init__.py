"""The run of a step: values go in, kernels run, values come out.

In come a program and fed arrays; out come fetched values, updated parameters, times of calls, and a page about the network.

- `feeding`: tables, columns and ragged data become tensors that fit the program.
- `engine`: `Scope` and `Executor`: the calls of a step as one Python function. Begin with `engine.executor`.
- `profiling`: the time of each call of a step, and the attempts of rewrites at an op.
- `operator_checks`: an operator compared with its samples; `report`: a network as one page.
"""
