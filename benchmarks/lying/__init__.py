"""Parts of lie_detection.py: the lies with the probes that must find them, and a probe at work against one engine."""
