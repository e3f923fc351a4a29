"""Searches the values of a config's options: trials are runs, and Optuna chooses what to try."""
