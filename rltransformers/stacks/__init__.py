"""Ways through the layers of a backbone. Each takes the stream, a state per application of a layer, and the call."""
