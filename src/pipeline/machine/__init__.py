"""What this machine is and can: processor, GPUs, CUDA, precisions, memory. Imports no framework."""
