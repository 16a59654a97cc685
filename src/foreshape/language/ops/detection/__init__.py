"""Operators of object detectors in images beside their layers, most of them for inference: boxes proposed, decoded, suppressed and assigned.

A box is four numbers: left, top, right, bottom. `priors` lay boxes over an image; `boxes` code and compare them. `yolo` reads them off a grid, and has
their loss. `multiclass_nms` and `nms` keep the best of overlapping boxes. `proposals` and `pyramid` choose regions of interest and deal them out to
the levels of a pyramid. Truths are assigned to boxes by `foreshape.language.ops.legacy`.

The boxes that stay depend on the numbers. Such results have a row count with a symbol of its own, or are ragged, with a sequence per image. Equal scores count
in their order. PaddlePaddle leaves their order to its sort in `matrix_nms` and before `generate_proposals` suppresses, so there it may differ.
"""
