"""What a session needs before Spark is started."""

from __future__ import annotations

import os
import stat

import pytest

from sparkinfer import session
from sparkinfer.errors import InvalidConfig, JavaNotFound
from sparkinfer.udf.session import DELTA_EXTENSION, _delta_settings, delta_package, require_java


@pytest.fixture
def java(tmp_path, monkeypatch):
    """A JAVA_HOME whose java says the given version."""

    def make(version: str) -> None:
        path = tmp_path / "bin" / "java"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    return make


@pytest.mark.parametrize(
    ("line", "major"), [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "21" 2023-09-19', 21)]
)
def test_a_java_that_is_new_enough_is_found(java, line, major):
    java(line)
    assert require_java() == major


@pytest.mark.parametrize("line", ['java version "1.8.0_401"', 'openjdk version "11.0.2" 2019-01-15'])
def test_an_old_java_is_one_clear_line_with_the_fix(java, line):
    java(line)
    with pytest.raises(JavaNotFound, match=r"needs Java 17.*Install Java 17") as raised:
        require_java()
    assert "\n" not in str(raised.value)


def test_no_java_is_one_clear_line_with_the_fix(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaNotFound, match="no java on the PATH"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME is .* no bin/java"):
        require_java()


def test_gpu_amounts_in_local_mode_are_refused_because_spark_would_wait_for_ever(monkeypatch):
    monkeypatch.setattr("sparkinfer.udf.session.running_session", lambda: None)
    with pytest.raises(InvalidConfig, match="wait for ever"):
        session(config={"spark.task.resource.gpu.amount": "0.5"})


def test_the_delta_jar_fits_the_installed_packages():
    assert delta_package() == "io.delta:delta-spark_4.2_2.13:4.4.0"
    assert os.environ.get("PYSPARK_PYTHON"), "tests run workers with their own Python"


def test_nothing_is_fetched_where_the_given_jars_bring_delta():
    packages = "spark.jars.packages"
    assert packages in _delta_settings({"spark.jars": "/jars/postgresql-42.jar"})
    given = {"spark.jars": "/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar,/jars/delta-storage-4.4.0.jar"}
    found = _delta_settings(given)
    assert packages not in found
    assert found["spark.sql.extensions"] == DELTA_EXTENSION
