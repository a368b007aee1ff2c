"""Compiles a saved program to a package of machine code: ``python -P build.py PROGRAM PACKAGE``, a process of its own.

So whatever the compilers print, log, start or break stays out of the process that trains. It imports nothing but torch.
"""

import sys

import torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch._inductor.aoti_compile_and_package(
        torch.export.load(sys.argv[1]),
        package_path=sys.argv[2],
        inductor_configs={
            "cpp.threads": 1,  # no OpenMP regions: products of matrices still use the threads of torch
            # Without this, vectors of up to eight numbers and scalars are written into the code, and a bias of a small
            # head would keep the value it had when it was compiled.
            "always_keep_tensor_constants": True,
            # Otherwise what is computed from one number of the module alone is written into the code, too: the
            # deviation of an action was.
            "joint_graph_constant_folding": False,
            "compile_threads": 1,
        },
    )
