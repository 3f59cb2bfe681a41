"""The gateway: a shell of HTTP around `longproof.policy.controller`, which takes every decision."""
