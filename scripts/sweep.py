#!/usr/bin/env python3
"""The same training with every combination of some options."""

import sys

import lockstep

lockstep.use_an_interpreter_with("h5py", "numpy")

from lockstep.sweep import main  # noqa: E402

sys.exit(main())
