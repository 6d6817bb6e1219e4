"""What reaches what: one real forward, recorded and analysed; nothing is decided or changed here.

- `recorder`: follows values through the functions and modules that a forward runs
- `values`: what is known of one tensor; `homogeneity`: how it scales with each weight
- `operations`: the kind of every torch function; `effects`: what each kind does to values
- `contraction`: products of matrices, convolutions, einsums; `special`: modules followed as a whole
- `layout`: which features of a layer reach a place, by the sparsity of gradients
"""
