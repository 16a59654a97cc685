"""Functions of plain torch code, copied into written modules where these use them. They use torch, the standard library, and each other."""
