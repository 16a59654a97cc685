"""Values of a running program, and the border to torch. Nothing here computes.

- `lod_tensor`, `selected_rows`: feeds and fetches besides arrays; `conversion`: between arrays and tensors.
- `offsets`: the offsets of the sequences of a ragged value; `rows`: sparse rows; `tensor_array`: arrays of tensors.
- `torch_proxy`: torch, imported when it is first used; `torch_types`: its element types and ours.
- `openmp`, `processors`: the settings and the number of torch's threads.
"""
