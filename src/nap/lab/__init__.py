"""The paper, runnable: models, data, training, experiments and the command `nap`."""
