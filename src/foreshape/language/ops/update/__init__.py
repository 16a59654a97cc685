"""The updates of parameters by optimizers: one operator per rule, and the operators on sparse gradients before them."""
