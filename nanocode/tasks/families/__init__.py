"""The task families, one module for one family or a related pair."""
