"""Bits per byte, CORE, HumanEval, agent tasks, SOUL adherence, preference accuracy, intervals."""
