"""What an action head adds to its own outputs: what was done where features were alike."""
