"""Compiles the native library, and makes the second distribution of the package.

The library is plain C, which depends on no version of Python. The environment variable CC names
the C compiler. Without one the package is installed without the library, and says so when it
translates.

With SEQ2SEQ_DISTRIBUTION=seq2seq-runtime the distribution is the one for machines that only
translate: the same package and command, with the dependencies that pyproject.toml lists for it. It
cannot translate without the library, so it is not installed without a compiler.
"""

import os
import runpy
import shlex
import tomllib
from pathlib import Path
from typing import Any

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

sources = runpy.run_path("seq2seq_cli/native/sources.py")


class BuildLibrary(build_ext):
    """Builds a library that ctypes loads, without the options that Python was compiled with."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")[:-1], sources["LIBRARY_NAME"]))

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        if not self.force and not newer_group([*ext.sources, *ext.depends], str(library)):
            return
        library.parent.mkdir(parents=True, exist_ok=True)
        compiler = [*shlex.split(os.environ.get("CC", "cc")), "-shared", "-fPIC"]
        definition = f'-DSOURCE_HASH="{sources["source_hash"]()}"'
        files = [*ext.sources, "-o", str(library)]
        self.spawn([*compiler, *sources["FLAGS"], definition, *files, *sources["LINK_FLAGS"]])


class Wheel(bdist_wheel):
    """A wheel for any version of Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Runtime(Distribution):
    def parse_config_files(self, *args: Any, **kwargs: Any) -> None:
        super().parse_config_files(*args, **kwargs)
        project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
        runtime = project["tool"]["seq2seq-runtime"]
        self.metadata.name = "seq2seq-runtime"
        self.metadata.description = runtime["description"]
        self.install_requires = runtime["dependencies"]
        self.extras_require = {name: self.extras_require[name] for name in runtime["extras"]}
        self.metadata.provides_extras = {}
        self._finalize_requires()


DISTRIBUTIONS = {"seq2seq-cli": Distribution, "seq2seq-runtime": Runtime}
distribution = DISTRIBUTIONS[os.environ.get("SEQ2SEQ_DISTRIBUTION", "seq2seq-cli")]

setup(
    distclass=distribution,
    ext_modules=[
        Extension(
            "seq2seq_cli.native.library_file",
            [str(path) for path in sources["C_FILES"]],
            depends=[str(path) for path in sources["SOURCES"]],
            optional=distribution is not Runtime,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
)
