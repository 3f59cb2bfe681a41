"""Effective context as others have published it: dated facts with sources, and what follows from their cells."""
