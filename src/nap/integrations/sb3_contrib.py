"""sb3-contrib: `TQC(NaPTQCPolicy, env)`, `CrossQ(NaPCrossQPolicy, env)`, `QRDQN(NaPQRDQNPolicy, env)`.

As in `nap.integrations.stable_baselines3`, whose options and callback these policies share. CrossQ's batch
renormalization stays, and gets the normalization layers of step 1 beside it: it acts on each unit by itself,
and where it comes after the activation no weight is freed of its scale by it.
"""

from __future__ import annotations

from sb3_contrib.crossq.policies import CrossQPolicy
from sb3_contrib.qrdqn import policies as qrdqn
from sb3_contrib.tqc import policies as tqc

from nap.integrations.stable_baselines3 import NaPOffPolicy, NaPQNetwork


class NaPTQCPolicy(NaPOffPolicy, tqc.TQCPolicy):
    """`MlpPolicy` of TQC with NaP."""


class NaPTQCCnnPolicy(NaPOffPolicy, tqc.CnnPolicy):
    """`CnnPolicy` of TQC with NaP."""


class NaPTQCMultiInputPolicy(NaPOffPolicy, tqc.MultiInputPolicy):
    """`MultiInputPolicy` of TQC with NaP."""


class NaPCrossQPolicy(NaPOffPolicy, CrossQPolicy):
    """`MlpPolicy` of CrossQ with NaP."""


class NaPQRDQNPolicy(NaPQNetwork, qrdqn.QRDQNPolicy):
    """`MlpPolicy` of QRDQN with NaP."""

    network = "quantile_net"


class NaPQRDQNCnnPolicy(NaPQNetwork, qrdqn.CnnPolicy):
    """`CnnPolicy` of QRDQN with NaP."""

    network = "quantile_net"
