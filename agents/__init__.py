if __name__ != "rltransformers.agents":
    raise ImportError("import this folder as rltransformers.agents")
