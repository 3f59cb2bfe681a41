"""Probes ask one question each and append raw records; they never summarise. `claim.findings` reads what they asked."""
