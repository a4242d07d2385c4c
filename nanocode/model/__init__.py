"""The GPT (Flax NNX) and the rules that derive its shape from its depth."""
