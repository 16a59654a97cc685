"""What detectors of objects in images do beside their layers, most of it for inference: boxes proposed, decoded, suppressed and sorted out.

A box is four numbers: left, top, right, bottom. `priors` lay boxes over an image, `boxes` code and compare them, `yolo` reads them off a
grid and `yolo_loss` says what they cost, `multiclass_nms` and `matrix_nms` keep the best of those that overlap, `proposals` and `pyramid`
choose regions of interest and deal them out to the levels of a pyramid, `matching` finds what belongs to which truth, and `retinanet` ends
a RetinaNet.

Which boxes stay is known when the numbers are: such results have a row count that is a symbol of their own, or are ragged, with the boxes
of an image for a sequence. Scores that are equal count in their order; where PaddlePaddle leaves it to its sort (in `matrix_nms`, before
`generate_proposals` suppresses, in `mine_hard_examples`), its order of equal ones may be another.
"""
