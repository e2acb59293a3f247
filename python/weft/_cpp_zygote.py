"""The zygote of Python workers in the session of a C++ program; the node daemon runs `python3 -m weft._cpp_zygote`."""

import os
import sys

if __name__ == "__main__":
    from weft import _worker
    from weft._zygote import main

    os.environ["WEFT_DRIVER"] = _worker.describe_driver(os.environ.get("WEFT_NAMESPACE", ""))
    sys.argv[:] = [""]
    _worker.prepare_zygote()
    main()
