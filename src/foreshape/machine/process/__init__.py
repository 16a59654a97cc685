"""Settings of the whole process: threads, pages, memory of the machine, devices, modes of torch."""
