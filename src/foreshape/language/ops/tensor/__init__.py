"""Tensors created, drawn, moved and split, without arithmetic.

`creation`, `filling`, `random` and `sampling` make tensors. `reshaping`, `slicing`, `joining`, `gathering`, `expanding`, `padding` and `ordering` move
elements. `ranking`, `counting` and `running` have their order and counts. `plumbing` moves whole values and lays them side by side, and
`random_state` keeps the generator.
"""
