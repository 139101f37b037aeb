"""Build backend of the package: maturin's, which builds the native module, and cargo for the command that comes with it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin
from maturin import build_editable, build_sdist, get_requires_for_build_editable, get_requires_for_build_sdist, get_requires_for_build_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

#: Files below it are installed by their kind, those in `scripts` beside the interpreter (`data` in pyproject.toml).
_DATA = Path(__file__).resolve().parent / "ringbell.data"


def _profile(config_settings: Any) -> str:
    """Cargo's profile: `pip install --config-settings profile=dist` for the one of what is published."""
    return str((config_settings or {}).get("profile", "release"))


def _command(profile: str) -> Path:
    """Builds `ringbell`, and returns it.

    The native module is selected too, so that both have the same features: what they share, nearly everything, is compiled once.
    Its own library is maturin's to build, with settings of pyo3 that cargo alone does not have.
    """
    build = ["cargo", "build", "--profile", profile, "--locked", "--package", "ringbell-cli", "--package", "ringbell-python"]
    build += ["--bin", "ringbell", "--message-format", "json-render-diagnostics"]
    done = subprocess.run(build, cwd=_DATA.parent, stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines():
        built = json.loads(line).get("executable")
        if built and Path(built).name == "ringbell":
            return Path(built)
    raise RuntimeError("cargo has built no command `ringbell`; build it with `cargo build --release --package ringbell-cli`")


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    """The metadata alone, which nothing needs to be built for."""
    _DATA.mkdir(exist_ok=True)
    try:
        return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    finally:
        shutil.rmtree(_DATA, ignore_errors=True)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """A wheel with the module, the Python files and the command."""
    scripts = _DATA / "scripts"
    shutil.rmtree(_DATA, ignore_errors=True)
    scripts.mkdir(parents=True)
    try:
        command = scripts / "ringbell"
        profile = _profile(config_settings)
        shutil.copy2(_command(profile), command)
        if shutil.which("strip"):
            # In the profile `dist`, line tables are four fifths of it.
            subprocess.run(["strip", os.fspath(command)], check=True)
        settings = {**(config_settings or {}), "build-args": f"--profile {profile}"}
        settings.pop("profile", None)
        return maturin.build_wheel(wheel_directory, settings, metadata_directory)
    finally:
        shutil.rmtree(_DATA, ignore_errors=True)
