"""Tensors made, drawn, moved and taken apart; nothing is computed but where elements go.

`creation`, `assign_value`, `random` and `sampling` make them; `reshaping`, `slicing`, `joining`, `gathering`, `expanding`, `padding` and
`ordering` move elements; `ranking`, `counting` and `running` tell of their order; `plumbing` and `copying` move values as a whole,
`coalesce_tensor` lays them side by side, `random_state` keeps the generator.
"""
