"""Tools around training, which training itself never calls: check, compare, diff, verify-resume."""
