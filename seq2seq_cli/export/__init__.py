"""A trained model in the formats of other programs, checked against this one."""
