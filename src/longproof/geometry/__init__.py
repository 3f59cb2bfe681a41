"""What a model costs: its layers, read from a model file, and the bytes they need per stage and rank.

config.json | GGUF header ─▶ hf.py | gguf.py ─▶ ModelGeometry (model.py) ─▶ footprint.py, sharding.py (pure)
"""
