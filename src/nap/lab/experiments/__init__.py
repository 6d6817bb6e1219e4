"""The paper's experiments, one module each; for the command line alone."""
