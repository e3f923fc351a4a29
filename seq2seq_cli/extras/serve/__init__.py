"""The server: HTTP in one process without torch, models in one process for each core."""
