"""What the transformer experiments share."""
