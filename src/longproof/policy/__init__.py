"""Decisions: pure functions over values; time and chance are arguments."""
