"""How a question is put to a running engine: prompts of exact length, one request or a load of many, all recorded."""
