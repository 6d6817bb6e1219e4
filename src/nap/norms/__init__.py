"""The norms that step 1 inserts: on a layer's output, and inside torch's attention and recurrence."""
