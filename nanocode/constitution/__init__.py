"""The constitutional loop: SOUL, endpoints, critic, revision, preference pairs."""
