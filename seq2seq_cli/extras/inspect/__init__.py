"""Looks into a trained model: attention, parameters, activations."""
