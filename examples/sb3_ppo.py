"""PPO of Stable-Baselines3 on CartPole, with NaP by its policy class; saved and loaded."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from nap.integrations.stable_baselines3 import NaPActorCriticPolicy


def mean_return(model: PPO, episodes: int) -> float:
    """The mean return with sampled actions, as in training."""
    env = model.get_env()
    assert env is not None
    returns, _ = evaluate_policy(model, env, episodes, deterministic=False)
    assert isinstance(returns, float)
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=10, help="to judge the policy by")
    args = parser.parse_args()
    env = Monitor(gymnasium.make("CartPole-v1"))
    model = PPO(
        NaPActorCriticPolicy,
        env,
        n_steps=512,
        learning_rate=lambda left: 1e-3 * left,  # the rate is what it says, so its fall is written down
        seed=0,
        device="cpu",
    )
    before = mean_return(model, args.episodes)
    model.learn(args.steps)
    after = mean_return(model, args.episodes)
    print(f"mean return {before:.1f} before, {after:.1f} after {args.steps} steps")

    with tempfile.TemporaryDirectory() as folder:  # norms and radii come back with the model
        model.save(Path(folder) / "model.zip")
        again = PPO.load(Path(folder) / "model.zip", env=env, device="cpu")
    pairs = zip(model.policy.parameters(), again.policy.parameters(), strict=True)
    same = all(torch.equal(saved, loaded) for saved, loaded in pairs)
    assert isinstance(again.policy, NaPActorCriticPolicy)
    ratios = again.policy.projector.norm_ratios().values()
    print(f"loaded with the same weights: {same}")
    print(f"norms of the weights over those at the start: {min(ratios):.6f} to {max(ratios):.6f}")


if __name__ == "__main__":
    main()
