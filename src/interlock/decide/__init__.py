"""Decisions: pure functions of values, with the time and the randomness given as arguments."""
