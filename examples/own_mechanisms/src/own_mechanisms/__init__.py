"""Two mechanisms for rltransformers: retention, and a gate."""
