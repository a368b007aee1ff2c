"""Encoders of a set or sequence inside one observation: entities, patches of an image, a prompt of demonstrations."""
