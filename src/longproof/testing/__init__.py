"""Test doubles that ship: a scriptable lying engine, a fake clock, builders. Nothing in longproof imports this."""
