"""Intervals, quantiles with confidence, paired comparison. Pure: samples in, numbers out."""
