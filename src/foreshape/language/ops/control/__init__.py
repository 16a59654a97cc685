"""Control: operators that run blocks, choose between values or watch a run (print, assert), and the tensor arrays and rank tables of loops."""
