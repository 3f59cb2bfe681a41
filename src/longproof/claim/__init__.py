"""Evidence → what may be said. Pure functions of the evidence directory."""
