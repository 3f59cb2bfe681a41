"""What `gateway_chaos.py` and `gateway_soak.py` are made of: engines that can be killed, a gateway that can be killed,
clients that remember everything, faults, and the laws that must hold whatever happened."""
