"""What `--against` names: a git revision, a wheel, or the file of an earlier run."""

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from ..errors import InputError
from .field import Side

__all__ = ["ROOT", "installed", "named", "revision"]

ROOT = Path(__file__).parents[1]  # of the package; in a checkout, of the repository
EXPECTED = "a git revision, a wheel (.whl), or the .json file of an earlier run"


def revision(root: Path = ROOT) -> str:
    """What the code measured is: its commit, and whether something was changed since; empty if not of a checkout."""
    if not _is_checkout(root):
        return ""
    commit = _git(root, "rev-parse", "--short", "HEAD").stdout.decode().strip()
    changed = bool(_git(root, "status", "--porcelain").stdout.strip())
    return f"{commit}{' with changes' if changed else ''}"


def named(ref: str, folder: Path, root: Path = ROOT) -> Side | Path:
    """The code of `ref`, put into `folder`; or the file of an earlier run."""
    path = Path(ref)
    if path.suffix == ".json" and path.is_file():
        return path
    if path.suffix == ".whl" and path.is_file():
        return installed(path, folder)
    if path.exists() and not _is_checkout(root):
        raise InputError(f"{ref} is neither a wheel nor an earlier run", expected=EXPECTED)
    if not _is_checkout(root):
        raise InputError(f"no wheel or earlier run {ref!r}", expected=EXPECTED, mend="revisions need a git checkout")
    found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if found.returncode:
        raise InputError(f"no git revision, wheel or earlier run {ref!r}", expected=EXPECTED, mend="git log --oneline")
    archive = _git(root, "archive", "--format=tar", found.stdout.decode().strip())
    if archive.returncode:
        raise InputError(f"git does not give {ref!r}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder / "gander", filter="data")
    return _measurable(ref, folder)


def installed(wheel: Path, folder: Path) -> Side:
    """A wheel's code, without what it depends on: that is the same on both sides."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise InputError(f"pip does not install {wheel}: {(run.stderr.strip().splitlines() or ['?'])[-1]}")
    return _measurable(wheel.name, folder)


def _measurable(name: str, folder: Path) -> Side:
    """Old code, new benchmarks: both sides are measured by the same."""
    package = folder / "gander"
    if not (package / "optimized").is_dir():
        raise InputError(f"{name} has no gander/optimized", expected="a version of gander")
    shutil.copytree(
        ROOT / "benchmarks", package / "benchmarks", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    return Side(name, folder)


def _is_checkout(root: Path) -> bool:
    return (root / ".git").exists()


def _git(root: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise InputError("git is not installed", expected=EXPECTED) from None
