"""Reading, tabulating, plotting and predicting Lockstep's runs.

The programs in scripts/ are thin entry points to this package. It needs h5py
and numpy, and for the report plotly; scripts/install-python installs them.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_INSTALLED = {"h5py", "numpy", "plotly"}  # by scripts/install-python


def use_an_interpreter_with(*modules: str) -> None:
    """Starts the program again under the virtual environment's or the system's
    Python where the one that runs lacks a module and they have all."""
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if not missing:
        return
    if os.environ.get("LOCKSTEP_PYTHON_TRIED") is None:
        os.environ["LOCKSTEP_PYTHON_TRIED"] = sys.executable
        for candidate in (str(ROOT / ".venv/bin/python"), "/usr/bin/python3"):
            if shutil.which(candidate) is None or candidate == sys.executable:
                continue
            done = subprocess.run(
                [candidate, "-c", f"import {', '.join(modules)}"],
                stderr=subprocess.DEVNULL, check=False)
            if done.returncode == 0:
                os.execv(candidate, [candidate, *sys.argv])
    how = "scripts/install-python" if _INSTALLED.issuperset(missing) else \
        "python3 -m venv --system-site-packages .venv && .venv/bin/pip " \
        f"install {' '.join(missing)}"
    sys.exit(f"error: this Python ({sys.executable}) lacks "
             f"{', '.join(missing)}; to install: {how}")
