"""``make release-check``: build sdist and wheel, install the wheel in a new environment, try it from another folder.

The environment is a new ``venv`` without anything of the system's; everything comes from the package index under
``constraints.txt``, first the base dependencies, then two extras (``plot``, ``graph``). The other extras are loggers,
which the test suite tries in the development environment.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
IN_WHEEL = (
    "dladmm/py.typed",
    "dladmm/report/assets/report.js",
    "dladmm/reproduce/paper.toml",
    "dladmm/reproduce/configs/mlp-accuracy.toml",
    "dladmm/runs/chosen.toml",
)
IN_SDIST = (
    "README.md",
    "LICENSE",
    "pyproject.toml",
    "Makefile",
    "tests/conftest.py",
    "src/dladmm/_version.py",
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        print("Building ...", flush=True)
        run(
            *(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(work / "dist"), str(ROOT)),
            quiet=True,
        )
        (wheel,) = (work / "dist").glob("*.whl")
        (sdist,) = (work / "dist").glob("*.tar.gz")
        version = wheel.name.split("-")[1]
        assert sdist.name == f"dladmm-{version}.tar.gz", sdist.name
        check_contents(wheel, sdist, version)

        print("Installing the wheel in a new environment (PyTorch is large) ...", flush=True)
        run(sys.executable, "-m", "venv", str(work / "env"))
        python = str(work / "env" / "bin" / "python")
        base, extras = work / "base", work / "extras"
        base.mkdir()
        extras.mkdir()
        smoke = [python, "-I", "-W", "error", str(ROOT / ".ci" / "smoke.py"), version]
        install(python, str(wheel))
        run(python, "-I", "-W", "error", "-c", "import dladmm", cwd=base)
        run(*smoke, cwd=base)
        install(python, f"{wheel}[plot,graph]")
        run(*smoke, "--extras", cwd=extras)
        run(python, "-m", "pip", "check", "--disable-pip-version-check")


def check_contents(wheel: Path, sdist: Path, version: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert not [name for name in IN_WHEEL if name not in names], "the wheel lacks files"
    strangers = [name for name in names if not name.startswith(("dladmm/", f"dladmm-{version}.dist-info/"))]
    assert not strangers, f"the wheel installs {strangers}"
    with tarfile.open(sdist) as archive:
        held = set(archive.getnames())
    lacking = [name for name in IN_SDIST if f"dladmm-{version}/{name}" not in held]
    assert not lacking, f"the sdist lacks {lacking}"


def install(python: str, what: str) -> None:
    constraints = str(ROOT / "constraints.txt")
    flags = ("--quiet", "--quiet", "--disable-pip-version-check", "--constraint", constraints)
    run(python, "-m", "pip", "install", *flags, what)


def run(*command: str, cwd: Path | None = None, quiet: bool = False) -> None:
    done = subprocess.run(command, cwd=cwd, check=False, text=True, capture_output=quiet)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed\n{done.stdout or ''}{done.stderr or ''}")


if __name__ == "__main__":
    main()
