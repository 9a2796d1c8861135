#!/usr/bin/env python3
"""Well-known claims about training, each tried on this machine."""

import sys

import lockstep

lockstep.use_an_interpreter_with("h5py", "numpy")

from lockstep.findings import main  # noqa: E402

sys.exit(main())
