"""Rainbow as in DQN Zoo, for Atari and a small built-in game: network, replay, learner, agent, runs.

Only `learner.build` knows of Normalize-and-Project: it hands the network to the library.
"""
