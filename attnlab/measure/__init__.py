"""What is measured beside the loss: memory, time, attention maps. Each file is one measurement."""
