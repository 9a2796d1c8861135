#!/usr/bin/env python3
"""export_memory_snapshot.py: memory timelines for PyTorch's visualiser."""

import sys

import lockstep

lockstep.use_an_interpreter_with("h5py", "numpy")

from lockstep.snapshot import main  # noqa: E402

sys.exit(main())
