"""How plastic a network still is: unused units, ranks, norms, Jacobians and kernels.

Every function takes tensors (or a model and a batch) and returns a 0-d tensor, so nothing waits for
the device until someone asks for the number; the ranks are the exception, because the singular value
routines of CUDA synchronise by themselves. For a population of networks, `torch.func.vmap` any of
them over the leading axis. `Recorder` measures them inside a training loop; `diagnose` looks for reasons
why a network does not learn.
"""

from nap.diagnostics.activations import ACTIVATIONS
from nap.diagnostics.doctor import Diagnosis, diagnose, diagnose_log
from nap.diagnostics.jacobian import jacobian_norm
from nap.diagnostics.kernel import ntk, ntk_rank
from nap.diagnostics.norms import gradient_norm, parameter_norm
from nap.diagnostics.probing import evaluating
from nap.diagnostics.rank import effective_rank, feature_rank, stable_rank
from nap.diagnostics.recorder import Recorder
from nap.diagnostics.units import dead_units, dormancy_scores, dormant_units, linearized_units

__all__ = [
    "ACTIVATIONS",
    "Diagnosis",
    "Recorder",
    "dead_units",
    "diagnose",
    "diagnose_log",
    "dormancy_scores",
    "dormant_units",
    "effective_rank",
    "evaluating",
    "feature_rank",
    "gradient_norm",
    "jacobian_norm",
    "linearized_units",
    "ntk",
    "ntk_rank",
    "parameter_norm",
    "stable_rank",
]
