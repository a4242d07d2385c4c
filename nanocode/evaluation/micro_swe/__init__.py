"""micro-SWE: generated repositories with one bug, an issue that describes it, and a test that fails."""
