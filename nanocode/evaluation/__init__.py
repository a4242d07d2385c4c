"""Bits per byte, agent tasks, SOUL adherence, preference accuracy, intervals."""
