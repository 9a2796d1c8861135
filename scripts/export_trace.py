#!/usr/bin/env python3
"""export_trace.py: a run as a trace for Perfetto and chrome://tracing."""

import sys

import lockstep

lockstep.use_an_interpreter_with("h5py", "numpy")

from lockstep.trace import main  # noqa: E402

sys.exit(main())
