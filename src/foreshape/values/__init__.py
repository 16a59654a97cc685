"""Values that exist only while a program runs, and the border to torch. Nothing here computes.

- `lod_tensor`, `selected_rows`: what is fed and fetched besides arrays; `conversion`: between arrays and tensors.
- `offsets`: where the sequences of a ragged value begin and end; `rows`: sparse rows; `tensor_array`: arrays of tensors.
- `torch_proxy`: torch, imported when it is first used; `torch_types`: its element types and ours.
- `openmp`, `processors`: what torch's threads are told, and how many there may be.
"""
