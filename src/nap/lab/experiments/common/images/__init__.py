"""What the two image columns of Table 1 share."""
