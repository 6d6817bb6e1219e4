"""What the training loops share: CUDA graphs, the watch for non-finite values, several processes."""
