"""The methods that NaP is compared with (§5.1), all under one contract: see `Method`.

    training = Training.of(model, optimizer, generator=generator)
    loss = task_loss + method.penalty(training.parameters, training.initial)
    loss.backward()
    method.before_step_(training)
    optimizer.step()
    method.after_step_(training, inputs)
    method.at_task_change_(training)     # when the task changes

with `method.prepare_(model, inputs)` before the optimizer is built. Under NaP the order matters:

1. `prepare_` of methods that exchange activations (`LeakyReLU`, `CReLU`),
2. `nap.normalize_`, which puts norms in front of those activations and removes biases,
3. `prepare_` of methods that act on units (`ReDo`, `ContinualBackprop`), which note each unit's
   parameters: the norms' scales among them, the removed biases not. The rest may be prepared anywhere.

No method changes a frozen parameter.
"""

from nap.methods.continual_backprop import ContinualBackprop
from nap.methods.contract import Method, Training
from nap.methods.crelu import ConcatenatedReLU, CReLU
from nap.methods.noise import Langevin
from nap.methods.penalties import L2, L2Init
from nap.methods.redo import ReDo
from nap.methods.relus import LeakyReLU
from nap.methods.shrinking import ShrinkAndPerturb, WeightDecay
from nap.methods.wiring import Units, Wiring, find_wiring

__all__ = [
    "L2",
    "CReLU",
    "ConcatenatedReLU",
    "ContinualBackprop",
    "L2Init",
    "Langevin",
    "LeakyReLU",
    "Method",
    "ReDo",
    "ShrinkAndPerturb",
    "Training",
    "Units",
    "WeightDecay",
    "Wiring",
    "find_wiring",
]
