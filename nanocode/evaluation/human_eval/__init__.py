"""HumanEval (Chen et al., 2021): functions to complete, asked in three ways and judged in the sandbox."""
