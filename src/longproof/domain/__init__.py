"""Values everybody speaks: units, measurements, requests, deployments, timelines and verdicts. No I/O, no clock."""
