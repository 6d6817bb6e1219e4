"""Step 1: a norm before every nonlinearity that lacks one.

`normalize` has the two public functions. On the way: a `trial` copy is recorded (`nap.tracing`), `needs`
gathers what the record asks for, `decide` turns that into a plan (`placement`), `surgery` applies it,
`roles` says what each parameter then is, and `verification` tries whether all of it is true.
"""
