"""What holds for all tests: no deadlines, signals as in a terminal, no modules whose library is missing."""

import os
import signal
from importlib.util import find_spec

import torch
from hypothesis import HealthCheck, settings

# A busy machine is no failure.
settings.register_profile("nap", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nap")
# Triton comes with the CUDA builds of torch only.
NEED_TRITON = [
    "src/nap/lab/loops/supervised/stacked/bn_affine_triton.py",
    "src/nap/lab/loops/supervised/stacked/conv_triton.py",
    "src/nap/lab/loops/population/fused_adam.py",
    "src/nap/lab/loops/supervised/stacked/fused_bn_relu_triton.py",
    "src/nap/lab/loops/supervised/fused_sgd.py",
    "src/nap/kernels/statistics_triton.py",
    "src/nap/kernels/norm_relu_triton.py",
    "src/nap/kernels/projection_triton.py",
]
NEED_MORE = {
    "torchrl": "src/nap/integrations/torchrl.py",
    "sb3_contrib": "src/nap/integrations/sb3_contrib.py",
    "lm_eval": "src/nap/lab/loops/language/lm_eval_adapter.py",
}
collect_ignore = [] if find_spec("triton") else NEED_TRITON
collect_ignore += [file for library, file in NEED_MORE.items() if find_spec(library) is None]
# Under nohup this signal is ignored, and so it would be in every process that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if not torch.cuda.is_available():
    # Kernels are then interpreted: slow, but exact. Triton reads this once, and any test may be the first.
    os.environ.setdefault("TRITON_INTERPRET", "1")
