"""Devices as data: memory, bandwidth, dense FLOP/s, links, power and prices, each figure with its source and date."""
