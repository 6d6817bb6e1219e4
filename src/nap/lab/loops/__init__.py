"""The four training loops: population, supervised, language, rainbow. What they share is in `common`.

They are written alike, with the same names:

- `settings.py`: arms and settings, importable without torch. The docstring of a setting is its help.
- `run.py` or `*_run.py`: a `Work` (`nap.lab.runner.work`) for each kind of run. `step` trains one unit and
  returns the rows that are due; `state_dict` and `load_state_dict` save and restore everything.
- `trainer.py` (rainbow: `learner.py` and `actor.py`): model, optimizer and projector. `update` learns from a
  batch, `monitor` watches for values that are not finite, `evaluate` returns loss and accuracy, `read` the
  means since the last row, `norms_and_rates` the norms and effective rates of a row.
- `build(arm, make, example)`: a fresh network and its projector.
- `diagnostics.py`, `evaluation.py`: what is measured between updates, and without learning.
- `stacked*`: several networks in one step, each of which computes what it would compute alone.
"""
