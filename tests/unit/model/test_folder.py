"""What a model folder must hold."""

from __future__ import annotations

import pytest

from sparkinfer.errors import ModelIncomplete, ModelNotFound, TrustRequired, UnsupportedModel
from sparkinfer.model.folder import check_folder, read_header, weight_files
from tests.support.model_folders import WEIGHTS, write_model, write_sharded


def test_a_whole_folder_passes(tmp_path) -> None:
    check_folder(write_model(tmp_path / "one"))
    check_folder(write_sharded(tmp_path / "many"))
    assert len(weight_files(tmp_path / "many")) == 3


def test_missing_shards_are_named(tmp_path) -> None:
    folder = write_sharded(tmp_path)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelIncomplete, match=r"1 of 3 .*model-00002-of-00003\.safetensors"):
        check_folder(folder)


@pytest.mark.parametrize("kept", [0, 4, 20, len(WEIGHTS) - 1])
def test_a_cut_weight_file_is_found_by_its_header(tmp_path, kept: int) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").write_bytes(WEIGHTS[:kept])
    with pytest.raises(ModelIncomplete, match=r"model\.safetensors"):
        check_folder(folder)


def test_a_damaged_header_and_an_html_page_are_no_weights(tmp_path) -> None:
    path = tmp_path / "model.safetensors"
    for content in (b"<html><body>not found</body></html>" * 10, (10).to_bytes(8, "little") + b"not json!!"):
        path.write_bytes(content)
        with pytest.raises(ModelIncomplete):
            read_header(path)


def test_a_git_lfs_pointer_is_named_as_one(tmp_path) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelIncomplete, match="git lfs pull"):
        check_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_each_missing_part_is_named(tmp_path, name: str) -> None:
    folder = write_model(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ModelIncomplete, match=name.replace(".", r"\.")):
        check_folder(folder)


def test_a_folder_that_is_not_there_says_that_executors_need_it(tmp_path) -> None:
    with pytest.raises(ModelNotFound, match="every executor"):
        check_folder(tmp_path / "absent")


def test_hints_name_the_gguf_file_or_the_folder_below(tmp_path) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelIncomplete, match=r"m\.gguf"):
        check_folder(tmp_path / "gguf")
    write_model(tmp_path / "above" / "inner")
    with pytest.raises(ModelIncomplete, match="did you mean .*inner"):
        check_folder(tmp_path / "above")


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
        {"architectures": ["BertModel"], "model_type": "bert"},
        {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True},
        {"architectures": ["LlamaForSequenceClassification"]},
    ],
)
def test_models_that_write_no_text_are_refused(tmp_path, changes) -> None:
    with pytest.raises(UnsupportedModel):
        check_folder(write_model(tmp_path, **changes))


def test_own_python_code_needs_trust_only_where_transformers_has_none(tmp_path) -> None:
    code = {"auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}, "architectures": ["XForCausalLM"]}
    unknown = write_model(tmp_path / "x", **code, model_type="x-of-nobody")
    with pytest.raises(TrustRequired, match="trust_remote_code=True"):
        check_folder(unknown)
    check_folder(unknown, trust_remote_code=True)
    check_folder(write_model(tmp_path / "llama", **code, model_type="llama"))


def test_pickled_weights_need_trust(tmp_path) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="save_pretrained"):
        check_folder(folder)
    check_folder(folder, trust_remote_code=True)


def test_an_adapter_alone_is_refused(tmp_path) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="merge"):
        check_folder(folder)
