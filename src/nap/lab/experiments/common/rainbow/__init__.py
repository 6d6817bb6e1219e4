"""What the Rainbow experiments share: settings, runs, how claims read scores, how scores are drawn."""
