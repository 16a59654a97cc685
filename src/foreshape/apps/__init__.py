"""The uses of networks: each room is one, and stands on all wings before it.

In come programs, saved networks and data; out come trained parameters, texts, answers over HTTP, and the `foreshape` command.

- `training`: the loop and its session, prediction, evaluation, checkpoints, callbacks, ranks. Begin with `training.loop`.
- `forecast`: the memory that eager torch takes on a GPU.
- `quantization`: networks with numbers of 8 bits; `generation`: texts written word by word.
- `serving`: saved networks behind HTTP; `workers`: jobs for other machines, on Ray.
- `cli`: the `foreshape` command.
"""
