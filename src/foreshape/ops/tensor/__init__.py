"""Tensors created, drawn, moved and split, without arithmetic.

`creation`, `assign_value`, `random` and `sampling` make tensors. `reshaping`, `slicing`, `joining`, `gathering`, `expanding`, `padding` and `ordering` move
elements. `ranking`, `counting` and `running` have their order and counts. `plumbing` and `copying` move whole values, `coalesce_tensor` lays them side by side,
and `random_state` keeps the generator.
"""
