"""The layers of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkinfer.config.load import load_settings
from sparkinfer.config.settings import Settings
from sparkinfer.errors import InvalidConfig


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARKINFER_CONFIG", raising=False)


def conf(**values: str) -> dict[str, str]:
    return {f"spark.sparkinfer.{name.replace('__', '.')}": value for name, value in values.items()}


def test_without_any_layer_the_code_defaults_hold() -> None:
    assert load_settings({}, None, None) == Settings()


def test_keyword_goes_over_spark_conf_over_yaml(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: from-yaml\nengine: {block_size: 8, window: 100, strict: true}\n")
    spark = conf(model="from-spark", engine__block_size="32")
    settings = load_settings({"model": "from-keyword"}, spark, path)
    assert (settings.model, settings.engine.block_size, settings.engine.window) == ("from-keyword", 32, 100)
    assert load_settings({}, spark, path).model == "from-spark"
    assert load_settings({"engine": {"strict": False}}, None, path).engine.strict is False


def test_yaml_is_found_in_the_current_folder_or_by_the_environment(tmp_path, monkeypatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "sparkinfer.yaml").write_text("model: here\n")
    assert load_settings({}, None, None).model == "here"
    (tmp_path / "other.yaml").write_text("model: there\n")
    monkeypatch.setenv("SPARKINFER_CONFIG", str(tmp_path / "other.yaml"))
    assert load_settings({}, None, None).model == "there"


def test_spark_confs_texts_become_the_settings_types() -> None:
    spark = conf(
        model="123", engine__kv_memory="4g", engine__memo="false", engine__kv_fraction="0.25", engine__threads="2"
    )
    settings = load_settings({}, {**spark, "spark.other": "x"}, None)
    assert settings.model == "123"
    engine = settings.engine
    assert (engine.kv_memory, engine.memo, engine.kv_fraction, engine.threads) == (4 * 1024**3, False, 0.25, 2)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("modle", "x", "did you mean model"),
        ("engine.blok_size", "3", "did you mean block_size"),
        ("engine.block_size", "many", "valid integer"),
        ("engine.block_size", "0", "at least 1"),
        ("engine.kv_memory", "4x", "a size such as 4g"),
        ("engine.strict", "maybe", "boolean"),
        ("engine.device", "gpu", "auto, cpu, cuda"),
        ("engine.idle_timeout_s", "0", "above 0"),
        ("tracking.sample_rows", "-1", "from 0 to 20"),
        ("tracking.sample_rows", "21", "from 0 to 20"),
        ("engine", "5", "engine"),
    ],
)
def test_a_wrong_spark_conf_is_named_by_its_whole_name(name: str, value: str, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told) as caught:
        load_settings({}, {f"spark.sparkinfer.{name}": value}, None)
    assert f"Spark conf spark.sparkinfer.{name}" in str(caught.value)


def test_a_wrong_yaml_value_is_named_by_its_line(tmp_path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("# settings\nmodel: sample\nengine:\n  window: wide\n")
    with pytest.raises(InvalidConfig, match=r"s\.yaml, line 4: engine\.window must be a valid integer, not 'wide'"):
        load_settings({}, None, path)


def test_a_missing_or_broken_file_is_told(tmp_path) -> None:
    with pytest.raises(InvalidConfig, match="does not exist"):
        load_settings({}, None, Path("absent.yaml"))
    path = tmp_path / "s.yaml"
    path.write_text("model: [open\nengine: 5\n")
    with pytest.raises(InvalidConfig, match="no YAML"):
        load_settings({}, None, path)
    path.write_text("- a\n- list\n")
    with pytest.raises(InvalidConfig, match="keys and values"):
        load_settings({}, None, path)
    path.write_text("")
    assert load_settings({}, None, path) == Settings()


def test_the_shipped_yaml_loads_and_says_the_code_defaults() -> None:
    shipped = Path(__file__).parents[3] / "conf" / "sparkinfer.yaml"
    assert load_settings({}, None, shipped) == Settings(model="sample")
