"""Image classifiers on data that stays as it is: Table 1, left."""
