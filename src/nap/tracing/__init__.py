"""What reaches what: one real forward, recorded and analysed; nothing is decided or changed here.

- `recorder`: follows values through the functions and modules that a forward runs, into a `record`
- `values`: what is known of one tensor; `homogeneity`: how it scales with each weight
- `operations`: the kind of every torch function; `effects`: which effect a `call` has on values
- `arithmetic`, `layers`, `meetings`: the effects; `scale`: norms that are written out are seen as such
- `contraction`: products of matrices, convolutions, einsums; `special`: modules followed as a whole
- `layout`: which features of a layer reach a place, by the sparsity of gradients

Words that the package uses in a sense of its own:

- site: a module that produces a result with its parameters, by its path; a call of it has a number
- producer: a parametric operation (a matrix product, a convolution), by (site, call, number in the call)
- `Value`: what is known of one tensor; `Carry`: a producer whose result, not yet normalised, is part of it
- bent: no longer a linear image of the producer's result, as |x|, x² or a norm of it
- `Use`: one call of a function with parameters; `Frame`: one call of a module
- `Meeting`: a nonlinearity that un-normalised producers enter; the plan must put a norm between
- hidden: a nonlinearity with something parametric after it, in contrast to the model's output
- degree: k where c·W makes the value cᵏ times as large; 0 is scale-invariant
- told: what the caller says of a function that cannot be followed (`activations=`, `linear=`)
- `Flow`: the record of one forward, all of the above
"""
