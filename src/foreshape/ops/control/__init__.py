"""Control: operators that run blocks, choose between values, the arrays of tensors and rank tables that loops need, and what
watches a run: print, assert."""
