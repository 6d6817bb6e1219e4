"""Several networks of one shape in one step: stacked weights and the kernels that act on them."""
