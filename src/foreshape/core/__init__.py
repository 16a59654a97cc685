"""The ground of every wing, without programs, operators and kernels.

In come numbers, names, files and the user's arrays; out go sizes with symbols, specs, values of a run and words for errors.

- `dims`: arithmetic over sizes that are numbers or symbols, with three answers to each question. Begin reading here, then `spec`.
- `spec`: kind, element type, dims and raggedness of a value.
- `values`: offsets, sparse rows and arrays of a run, and the border to PyTorch.
- `checked_json`, `pictures`, `folders`: files that are read with care, drawings, folders that are written.
- `hints`, `lazy_names`, `interrupts`, `gc_pause`, `data_class`, `constructor_repr`, `package_folder`, `version`: small parts of the package itself.
"""
