"""Arithmetic and functions of elements, comparisons, reductions, norms and matrix products.

`activation` and `smooth_activation` have the functions that networks bend their values with, `unary_math` and `steps` the others;
`trigonometry` and `special_functions` those with names of their own; `elementwise`, `scaling`, `extremes` and `pairs` the arithmetic, `compare`
the questions, `matmul` and `products` the products, `linear_algebra` and `solving` square matrices, `reduction` and `norms` what is left of an axis.
"""
