"""Compiles the native library: plain C, which depends on no version of Python.

Without a C compiler the package is installed without it, and says so when it translates.
"""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("seq2seq_cli/native")
sources = runpy.run_path(str(NATIVE / "sources.py"))


class BuildLibrary(build_ext):
    """Builds a library that ctypes loads, with no Python function to initialize it."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")[:-1], sources["library_name"]()))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols


class Wheel(bdist_wheel):
    """A wheel for any version of Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "seq2seq_cli.native.library_file",
            [str(path) for path in sources["C_FILES"]],
            depends=[str(path) for path in sources["SOURCES"]],
            define_macros=[("SOURCE_HASH", f'"{sources["source_hash"]()}"')],
            extra_compile_args=sources["FLAGS"],
            extra_link_args=sources["LINK_FLAGS"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
)
