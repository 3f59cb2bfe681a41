"""Whether a model uses what stands in its window: tasks, the text around them, and how their answers are scored."""
