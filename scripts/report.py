#!/usr/bin/env python3
"""Plots and tables of run records, as one page: report.py --help."""

import sys

import lockstep

lockstep.use_an_interpreter_with("h5py", "numpy", "plotly")

from lockstep.report import main  # noqa: E402

sys.exit(main())
