"""Pushing runs to a hub, and pulling them."""
