"""What pytest cannot import here: Triton comes with the CUDA builds of torch only."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["src/nap/lab/training/kernels.py"]
