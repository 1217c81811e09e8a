"""Python, Java, Spark and Delta: what a session is started from."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from pwd import getpwuid

from sparkinfer.cli.checks.base import Check, fail, ok, warn
from sparkinfer.errors import JavaNotFound
from sparkinfer.udf.session import delta_package, require_java

MIN_PYTHON = (3, 10)
#: delta-spark releases whose jars Maven Central does not serve.
WITHOUT_JARS = ("4.4.1",)


def installed(package: str) -> str | None:
    """The package's version, or None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_python() -> Check:
    """The interpreter."""
    found = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        return fail("python", found, "Use Python 3.10 or newer.")
    return ok("python", f"{found} ({sys.executable})")


def check_spark() -> Check:
    """The version of pyspark, which sparkinfer does not depend on: runtimes bring their own."""
    found = installed("pyspark")
    if found is None:
        return fail("spark", "pyspark is not installed", "pip install 'sparkinfer[spark]'")
    return ok("spark", f"pyspark {found}")


def check_java() -> Check:
    """The Java that Spark will start."""
    try:
        return ok("java", str(require_java()))
    except JavaNotFound as error:
        problem, _, fix = error.message.partition(". ")
        return fail("java", problem, fix)


def check_delta() -> Check:
    """The version of delta-spark and where its jars are."""
    found = installed("delta-spark")
    package = delta_package()
    if found is None or package is None:
        return warn(
            "delta",
            f"delta-spark is not installed; tables are written by delta-rs {installed('deltalake')}",
            "pip install 'sparkinfer[spark]' to write through Spark",
        )
    if found in WITHOUT_JARS:
        return fail("delta", f"Maven Central has no jars of delta-spark {found}", "pip install delta-spark==4.4.0")
    jar = delta_jar(package)
    if jar is None:
        return warn(
            "delta",
            f"delta-spark {found}; its jars are not on this machine yet",
            "The first session fetches 87 MB from Maven Central; without a way there set spark.jars to local copies.",
        )
    return ok("delta", f"delta-spark {found} ({jar})")


def delta_jar(package: str) -> Path | None:
    """The jar of a Maven coordinate, in Spark's own folder or in an Ivy cache."""
    group, artifact, release = package.split(":")
    homes = {Path.home(), Path(getpwuid(os.getuid()).pw_dir)}  # Java asks the system, not $HOME
    folders = [ivy / "jars" for home in homes for ivy in sorted(home.glob(".ivy2*"))]
    spec = find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "jars")
    names = (f"{group}_{artifact}-{release}.jar", f"{artifact}-{release}.jar")
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)
