"""The paper's networks, plain: no norms. `nap.normalize_` puts those in.

Every network is a `body` that ends in a nonlinearity and a linear `head`; what the head reads are the
features that the diagnostics are about.
"""
