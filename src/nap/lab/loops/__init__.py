"""What trains: a population of small networks, image classifiers, transformers and Rainbow agents."""
