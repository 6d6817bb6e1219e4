"""Data: what there is (`catalog`), getting it (`fetch`), reading it (`images`, `corpus`, `questions`).

Tasks are made from images in `streams`. What fetches and lists data needs no torch.
"""
