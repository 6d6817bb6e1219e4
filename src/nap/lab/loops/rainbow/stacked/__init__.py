"""Several Rainbow agents in one update: their tensors side by side in memory, every kernel for all of them.

An update of one agent is a hundred small kernels, most of them shorter than their launch; K agents in a stack
share the launches. Each computes what it would alone: `run.StackedRainbowWork` drives K ordinary runs,
whose tensors `blocks.share_` and `blocks.Blocks` have moved into one memory.
"""
