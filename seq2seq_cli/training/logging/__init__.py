"""What a run logs."""
