"""From source sentences to output sentences with a trained model."""
