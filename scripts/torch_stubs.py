"""Lets torch of PyPI be imported without the CUDA libraries that it links to, for machines that compute on the CPU.

usage: PYTHON_OF_THE_ENVIRONMENT scripts/torch_stubs.py

Called by scripts/learning-env after `pip install --no-deps torch`. PyPI has torch for CUDA only. Its libraries name
cuBLAS, cuDNN, NCCL and others as needed, 2.4 GB, though nothing calls them where there is no GPU. One small library
with their functions takes the place of all of them. Each function ends the process with its name, so that a wrong call
is not silent.
CUDA's runtime is called while torch loads: that one must be real. Does nothing to a torch that needs none of these.
"""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

LIBRARIES = re.compile(r"lib(cublas|cudnn|cufft|cufile|cupti|cusolver|cusparse|nccl|nvrtc|nvshmem)\w*\.so")
FUNCTIONS = re.compile(r"(cublas|cudnn|cufft|cufile|cupti|cusolver|cusparse|nccl|nvrtc|nvshmem)\w*$", re.IGNORECASE)

SOURCE = """#include <stdio.h>
#include <stdlib.h>
static void end(const char* name) {{
  fprintf(stderr, "torch called %s of CUDA, which this environment lacks (scripts/torch_stubs.py of weft)\\n", name);
  abort();
}}
#define STUB(name) void name(void) {{ end(#name); }}
{stubs}
"""


def output(*command) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    site = Path(sysconfig.get_path("purelib"))
    folder = site / "torch" / "lib"
    present = {path.name for path in site.glob("nvidia/*/lib/*.so*")}
    libraries, functions = set(), set()
    for path in folder.glob("*.so"):
        libraries.update(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "--dynamic", "--wide", path)))
        for line in output("nm", "--dynamic", "--undefined-only", path).splitlines():
            functions.add(line.split()[-1].partition("@")[0])
    missing = sorted(name for name in libraries - present if LIBRARIES.match(name))
    if not missing:
        return
    stubs = "\n".join(f"STUB({name})" for name in sorted(functions) if FUNCTIONS.match(name))
    library = folder / "libweft_torch_stubs.so"
    compiler = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"]
    subprocess.run(compiler, input=SOURCE.format(stubs=stubs), text=True, check=True)
    for name in missing:
        link = folder / name  # torch looks for them in this folder too
        if link.is_symlink():
            link.unlink()
        link.symlink_to(library.name)
    print(f"weft: torch has stubs for {len(missing)} CUDA libraries")


if __name__ == "__main__":
    sys.exit(main())
