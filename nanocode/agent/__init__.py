"""Tools, sandbox, policy, the session loop and the terminal."""
