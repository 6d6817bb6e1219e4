"""NaP in other people's training loops: Lightning, Hugging Face, Stable-Baselines3, sb3-contrib, TorchRL.

Each module translates one library's events into calls of `nap.normalize_` and `nap.Projector`, and needs
that library (extra: integrations). `late` holds what they share, `monitor` measures while they train.
"""
