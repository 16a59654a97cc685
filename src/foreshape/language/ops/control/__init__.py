"""Control: operators that run blocks, choose between values or watch a run (print, assert), and the tensor arrays of loops."""
