"""Messages between processes: process groups on torch.distributed, and the stores at which they meet."""
