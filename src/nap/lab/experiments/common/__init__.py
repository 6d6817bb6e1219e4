"""What several experiments share: from arms to runs, and three families of experiments."""
