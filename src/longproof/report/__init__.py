"""A claim for people: one HTML file, the terminal card, JSON. Functions of claim and evidence alone."""
