"""Fed values: from tables, columns, ragged data and arrays to tensors that fit the program."""
