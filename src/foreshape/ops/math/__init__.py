"""Arithmetic and functions of elements, comparisons, reductions, norms and matrix products.

`activation` and `smooth_activation` have the functions that networks bend their values with, `unary_math` and `steps` the others;
`elementwise` and `scaling` the arithmetic, `compare` the questions, `matmul` the products, `reduction` and `norms` what is left of an axis.
"""
