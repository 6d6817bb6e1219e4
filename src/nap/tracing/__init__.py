"""What reaches what: one real forward, recorded and analysed; nothing is decided or changed here.

- `recorder`: follows values through the functions and modules that a forward runs, into a `record`
- `values`: what is known of one tensor; `homogeneity`: how it scales with each weight
- `operations`: the kind of every torch function; `effects`: which effect a `call` has on values
- `arithmetic`, `layers`, `meetings`: the effects; `scale`: norms that are written out are seen as such
- `contraction`: products of matrices, convolutions, einsums; `special`: modules followed as a whole
- `layout`: which features of a layer reach a place, by the sparsity of gradients
"""
