"""Distills teachers into a student: a small model that learns from their translations."""
