"""What the rules of operators of several families share: broadcasting, sizes as operands, ragged rows, windows, statistics, known values."""
