#!/usr/bin/env python3
"""The same training with every combination of some options."""

import sys

import lockstep

lockstep.use_an_interpreter_that_has_the_requirements()

from lockstep.sweep import main  # noqa: E402

sys.exit(main())
