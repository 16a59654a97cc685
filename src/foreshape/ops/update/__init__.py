"""What an optimizer does to a parameter: one operator per rule, and what is done to sparse gradients before."""
