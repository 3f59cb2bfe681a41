"""The append-only evidence directory: what was asked, what happened, and a seal over it."""
