"""From a program to a program.

In goes a described network; out comes another program, inferred again: with gradients, for a use, for a number of ranks.

- `backward`: appends the gradient ops of a loss, through loops and branches too. Begin with `backward.append`.
- `passes`: prune, prepare for training and for inference, several batches in one update, 16 bits, division over ranks.

Updates are appended by `foreshape.optimizer`, which stands on `backward`.
"""
