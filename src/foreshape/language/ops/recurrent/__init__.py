"""Recurrent layers as a whole: `rnn` (padded and ragged), and PaddlePaddle's ragged `lstm`, `lstmp` and `gru`."""
