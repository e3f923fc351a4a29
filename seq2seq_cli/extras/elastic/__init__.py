"""Training that goes on when torchrun starts its processes again, or loses a machine."""
