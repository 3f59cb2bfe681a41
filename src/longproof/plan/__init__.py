"""What a deployment can hold, by each engine's own arithmetic: capacity, need and refusal, before a server starts."""
