"""From a config to a trained model in a run folder."""
