"""Translation on a Ray cluster."""
