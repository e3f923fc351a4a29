"""Runs made from other programs' models."""
