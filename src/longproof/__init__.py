"""longproof plans, proves and serves long-context LLM deployments, and serves only what has been proven."""

__version__ = "0.1.0"

__all__ = ["__version__"]
