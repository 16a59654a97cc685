"""Arithmetic and functions of elements, comparisons, reductions, norms and matrix products.

`activation` and `smooth_activation` have the activations of networks, `unary_math` and `steps` other functions of elements, `trigonometry` and
`special_functions` the named ones. `elementwise`, `scaling`, `extremes` and `pairs` have arithmetic, `compare` comparisons, `matmul` and `products` products,
`linear_algebra` and `solving` square matrices, `reduction` and `norms` reductions of an axis.
"""
