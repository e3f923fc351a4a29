"""Tools around training, which training itself never calls: check, diff, verify-resume, bench."""
