"""Control: operators that run blocks, choose between values, and the arrays of tensors and rank tables that loops need."""
