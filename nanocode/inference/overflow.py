"""The error of a conversation that no longer fits; kept apart so that catching it does not import JAX."""


class ContextOverflow(ValueError):
    """The conversation leaves the model no room to answer."""
