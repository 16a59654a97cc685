"""The building blocks of kernels: no operator, no schema. Each comes with its rule for memory.

- Matrix products (`products`, `onednn`) and memory for tensors (`pages`).
- Sequences: `segments` (sums over each), `row_ranges` (some of them, in another order).
- `pointwise`: convolutions by torch; `window_steps`: their strides and dilations.
- `pooling`: maxima and means of windows of images.
- Recurrent networks: `recurrence` and `recurrent_net` (over time), `lstm_steps`, `gru_steps` (a step), `lstm_pieces` (many steps at once);
  `packed_recurrence` and `recurrent_loop` (all layers and steps in machine code, with the tiles of `gate_tiles`);
  `lstm_memory`, `packed_memory`, `recurrent_memory` are their bytes.
- `attention`, `bags` (sums of looked up rows) and `class_loss` (a mean of cross entropies): kernels that fuse several operators.
- `chain_messages`: the sums and maxima over the paths of a chain, for CRFs.
"""
