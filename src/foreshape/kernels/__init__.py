"""What kernels are made of: no operator, no schema. Each comes with the memory that it takes.

- Matrix products (`products`, `onednn`) and where tensors lie (`pages`).
- Sequences: `segments` (sums over each), `row_ranges` (some of them, in another order).
- `pointwise`: convolutions by torch; `window_steps`: with which strides and dilations.
- `pooling`: maxima and means of windows of images.
- Recurrent networks: `recurrence` and `recurrent_net` (over time), `lstm_steps`, `gru_steps` (a step), `lstm_pieces` (many steps at once);
  `lstm_memory`, `packed_memory`, `recurrent_memory` are their bytes.
- `attention`, `bags` (sums of looked up rows) and `class_loss` (a mean of cross entropies): what a step makes of several operators.
- `chain_messages`: the sums and maxima over the paths of a chain, of which CRFs are made.
"""
