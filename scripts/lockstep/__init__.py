"""Reading, tabulating, plotting and predicting Lockstep's runs.

The programs in scripts/ are thin entry points to this package. It needs h5py
and numpy, and for the report plotly; scripts/install-python installs them.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_REQUIRED = ("numpy", "h5py", "plotly")


def _missing() -> list[str]:
    return [m for m in _REQUIRED if importlib.util.find_spec(m) is None]


def use_an_interpreter_that_has_the_requirements() -> None:
    """Starts the program again under the virtual environment or the system's
    Python where the one that runs lacks a requirement and they have it."""
    missing = _missing()
    if not missing:
        return
    if os.environ.get("LOCKSTEP_PYTHON_TRIED") is None:
        os.environ["LOCKSTEP_PYTHON_TRIED"] = sys.executable
        for candidate in (ROOT / ".venv/bin/python", Path("/usr/bin/python3")):
            if shutil.which(str(candidate)) is None:
                continue
            if os.path.samefile(candidate, sys.executable) and \
                    candidate != ROOT / ".venv/bin/python":
                continue
            check = f"import {', '.join(_REQUIRED)}"
            if os.system(f"'{candidate}' -c '{check}' 2>/dev/null") == 0:
                os.execv(candidate, [str(candidate), *sys.argv])
    sys.exit(f"error: this Python ({sys.executable}) lacks "
             f"{', '.join(missing)}; scripts/install-python installs them")
