"""Readouts: an action head adds what was done where features were alike."""
