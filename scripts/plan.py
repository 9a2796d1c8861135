#!/usr/bin/env python3
"""What training would take on more devices than there are."""

import sys

import lockstep

lockstep.use_an_interpreter_with("h5py", "numpy")

from lockstep.plan import main  # noqa: E402

sys.exit(main())
