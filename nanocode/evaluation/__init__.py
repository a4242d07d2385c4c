"""What a model can do: bits per byte, CORE, HumanEval, agent tasks, micro-SWE, BFCL, SOUL adherence, preferences."""
