"""The layers of networks of images and tables: convolutions, pooling, normalization, interpolation, dropout, embeddings."""
