"""Step 2 of NaP: after an optimizer's step, each weight goes back to the norm that it started with.

- equations over tensors: `sphere` (norms, projection), `affine` (scale and offset of a norm), `noisy` (means
  and noise of a noisy layer), `steps` (relative updates, the brake), `small` (a short path for small weights)
- decisions: `plan` (what happens to each parameter), `policies` (output, embeddings, branches)
- at work: `project` (the `Projector`), `apply` (the equations, by name), `limits` (limits on updates),
  `hooks` (an optimizer's steps), `state` (saved states), `names` (a weight in a wrapped or copied model)
- what users are told: `refusals` (errors), `misuse` (warnings)
"""
