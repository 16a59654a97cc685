"""The common rules of several families of operators: broadcasting, sizes as operands, ragged rows, windows, statistics, known values."""
