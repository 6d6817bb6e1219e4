"""Rainbow as in DQN Zoo, for Atari and a small built-in game: network, replay, learner, agent, runs.

Nothing here knows of Normalize-and-Project but `variants`, which hands the network to the library.
"""
