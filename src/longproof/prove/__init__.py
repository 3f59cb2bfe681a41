"""The main job: prove a running server. One straight line in `run`, what will run in `protocol`."""
