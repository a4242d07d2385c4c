"""Optimizer, schedules, losses, checkpoints and the one training loop."""
