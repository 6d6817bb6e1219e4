"""Several Rainbow agents in one update: their tensors side by side in memory, every kernel for all of them.

An update of one agent is some hundred small kernels, most of them shorter than their launch. With K agents
in a stack the launches are shared. Each agent computes what it would compute alone: `run.StackedRainbowWork`
drives K ordinary runs, whose tensors `blocks.share_` and `blocks.Blocks` have moved into one memory.
"""
