"""Modelled replicas, workloads and the event kernel behind `routing_traces.py`."""
