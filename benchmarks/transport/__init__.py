"""What `gateway_transport.py` starts: an engine that costs next to nothing, a bare proxy, and a load generator."""
