"""Step 2: weights back on their spheres.

`sphere` and `affine` are the equations over tensors, with kernels for a GPU in `fused`; `plan` is the
decision as a value, `refusals` what is not done and why, and `outputs` this for the last layer; `project`
has the `Projector` that carries them, `updates` tells real updates apart, `names` finds a weight again in a
wrapped or copied model.
"""
