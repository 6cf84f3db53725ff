"""Builds the event loop's machine code with the package; all else stands in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel, get_platform
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
ENGINE = Path("perfmodel", "engine")


class BuildWithLibrary(build_py):
    """Copies the package, and builds the library beside its source."""

    def run(self):
        """Build."""
        super().run()
        folder = ROOT if self.editable_mode else Path(self.build_lib).absolute()
        # of its own, because Numba reads its settings once; without a library the package works
        subprocess.run(
            [sys.executable, "-m", "perfmodel.engine.building", str(folder / ENGINE)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            check=False,
        )


class PlatformWheel(bdist_wheel):
    """A wheel with machine code: for one platform, and for any Python."""

    def get_tag(self):
        """Tags of the interpreter, of its binary interface, and of the platform."""
        platform = get_platform(self.bdist_dir).replace("-", "_").replace(".", "_")
        return self.python_tag, "none", platform


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel})
