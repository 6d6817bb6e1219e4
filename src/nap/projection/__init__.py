"""Step 2: weights back on their spheres.

`sphere`, `steps` and `affine` are the equations over tensors, with kernels for a GPU in `fused`; `acting`
applies them by name, and `limits` those that an update is limited by. `plan` is the decision as a value,
`refusals` what is not done and why, and `policies` this for weights whose norm is a choice; `project` has
the `Projector` that carries them, `updates` tells real updates apart, `names` finds a weight again in a
wrapped or copied model.
"""
