"""Builds the libraries into the package; everything else is in pyproject.toml.

The op library always; the kernels of the set or the configs that PYFLASH_KERNELS names (default:
all) where PYFLASH_ARCHS or a GPU of this machine says for which architectures.
"""

import shutil
from pathlib import Path

from setuptools import Command, Distribution, find_namespace_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

from pyflash.codegen.build import LIB_DIR, build_kernels, build_ops, default_archs, that_run_on
from pyflash.config import from_environment
from pyflash.config.sets import words_of_environment


class BuildLibraries(Command):
    """A step of `build`, for wheels and for editable installs."""

    user_options = ()

    def initialize_options(self):
        self.build_lib = None
        self.editable_mode = False  # set by setuptools: build into the source tree

    def finalize_options(self):
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self):
        out_dir = LIB_DIR
        if not self.editable_mode:
            out_dir = Path(self.build_lib).resolve() / "pyflash" / "lib"
            shutil.rmtree(out_dir, ignore_errors=True)
        build_ops(out_dir)
        if archs := default_archs():
            rebuild = ["pyflash", "build", *words_of_environment(), "--name", "default"]
            rebuild += ["--arch", ",".join(str(arch.sm) for arch in archs)]
            configs = that_run_on(from_environment(), archs)
            # A wheel is to be small; `pyflash build` builds kernels that a profiler shows by lines.
            build_kernels(configs, archs, out_dir, rebuild=rebuild, line_info=self.editable_mode)
        else:
            print("no GPU and no PYFLASH_ARCHS: no CUDA kernels are built; the op runs on the CPU")

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}

    def get_source_files(self):
        return []


class PlatformWheel(bdist_wheel):
    """The libraries are of a platform, but of no Python version: py3-none-linux_x86_64. A build
    number says for which architectures a wheel holds kernels: 1_sm80_sm90."""

    def finalize_options(self):
        super().finalize_options()
        if archs := default_archs():
            self.build_number = "_".join(["1", *(f"sm{arch.sm}" for arch in archs)])

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


# Beside pyflash/ in a checkout, inside of it once installed.
INSIDE = ("codegen", "third_party", "cute_kernels")


def packages() -> list[str]:
    inside = find_namespace_packages(include=[f"{name}*" for name in INSIDE])
    own = find_namespace_packages(include=["pyflash*"], exclude=["pyflash.lib"])
    return [*own, *(f"pyflash.{name}" for name in inside)]


build.sub_commands.append(("build_libraries", None))
setup(
    packages=packages(),
    package_dir={f"pyflash.{name}": name for name in INSIDE},
    py_modules=["pyflash_autoload"],
    distclass=BinaryDistribution,
    cmdclass={"build_libraries": BuildLibraries, "bdist_wheel": PlatformWheel},
)
