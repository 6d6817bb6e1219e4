"""Data: what there is (`catalog`), getting it (`fetch`), reading it (`images`), tasks from it (`streams`).

Only `images` and `streams` need torch.
"""
