"""Where haystacks come from: text of our own, the Python that runs us, the user's folders, and kept corpora by name."""
