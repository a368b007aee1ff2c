if __name__ != "rltransformers.envs":
    raise ImportError("import this folder as rltransformers.envs")
