"""Operators of old files: networks saved by PaddlePaddle 1 have them, and new networks take others.

- rank tables, with the arrays of time steps and the rows by a mask, of `fluid.layers.DynamicRNN` and `IfElse`: `foreshape.layer.rnn` and
  `foreshape.layer.cond` take their place
- `beam_search` and `beam_search_decode`: `gather_tree`, or `foreshape.apps.generation`
- `nce` and `hierarchical_sigmoid`: a `softmax_with_cross_entropy` over all classes, divided over ranks where they are many
- `chunk_eval`: `foreshape.metrics`
- `bipartite_match`, `mine_hard_examples` and `target_assign`: truths assigned by the training script

They are checked as all others are, and their layers have their public names.
"""
