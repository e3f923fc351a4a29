"""Random segmentations of the training text into subwords."""
