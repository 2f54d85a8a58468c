"""sentence-transformers' files, in both spellings: what is read, what is guessed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from embed.config import read_config
from embed.errors import ModelError
from embed.metadata import Metadata, read_metadata, transformer_directory


@pytest.fixture(params=["old", "new"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return bare(tmp_path, request.param)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return bare(tmp_path, "old")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return bare(tmp_path, "new")


def bare(directory: Path, generation: str | None, **settings: Any) -> Path:
    """Write config.json and the metadata, without weights or tokenizer, which metadata don't ask for."""
    tiny.write_json(directory / "config.json", tiny.default_config("xlmr", 200))
    if generation is not None:
        defaults = {"pooling": "mean", "maxseq": 20, "normalize": True, "prompts": None, "width": tiny.WIDTH}
        tiny.write_metadata(directory, generation, **{**defaults, **settings})
    return directory


def read(directory: Path) -> Metadata:
    return read_metadata(directory, read_config(transformer_directory(directory)))


def refusal(directory: Path, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(directory)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("generation", ["old", "new"])
@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("cls", "cls"),
        ("mean", "mean"),
        ("max", "max"),
        ("mean_sqrt_len_tokens", "mean_sqrt_len"),
        ("weightedmean", "weightedmean"),
        ("lasttoken", "lasttoken"),
    ],
)
def test_pooling(tmp_path: Path, generation: str, name: str, pooling: str) -> None:
    metadata = read(bare(tmp_path, generation, pooling=name))
    assert (metadata.pooling, metadata.pooling_source) == (pooling, "1_Pooling/config.json")


def test_a_list_of_one_pooling(new: Path) -> None:
    tiny.change_json(new / "1_Pooling/config.json", pooling_mode=["max"])
    assert read(new).pooling == "max"


def test_no_switch_at_all_is_mean(old: Path) -> None:
    tiny.change_json(old / "1_Pooling/config.json", pooling_mode_mean_tokens=False)
    assert read(old).pooling == "mean"


def test_the_new_key_wins_over_the_old_switches(old: Path) -> None:
    tiny.change_json(old / "1_Pooling/config.json", pooling_mode="cls")
    assert read(old).pooling == "cls"


def test_without_any_file_cls_is_a_guess(tmp_path: Path) -> None:
    metadata = read(bare(tmp_path, None))
    assert (metadata.pooling, metadata.pooling_source) == ("cls", None)
    assert (metadata.maxseq, metadata.maxseq_source) == (32, "config.json")
    assert (metadata.prompts, metadata.default_prompt_name, metadata.has_normalize) == ({}, None, False)


def test_the_pooling_folder_counts_without_modules_json(directory: Path) -> None:
    (directory / "modules.json").unlink()
    assert (read(directory).pooling, read(directory).pooling_source) == ("mean", "1_Pooling/config.json")


def test_several_poolings_are_refused(tmp_path: Path) -> None:
    old, new = bare(tmp_path / "old", "old"), bare(tmp_path / "new", "new")
    tiny.change_json(old / "1_Pooling/config.json", pooling_mode_cls_token=True)
    refusal(old, "1_Pooling/config.json", "cls", "mean", "side by side")
    tiny.change_json(new / "1_Pooling/config.json", pooling_mode=["cls", "max"])
    refusal(new, "1_Pooling/config.json", "cls", "max", "side by side")


def test_unknown_poolings_are_refused(tmp_path: Path) -> None:
    old, new = bare(tmp_path / "old", "old"), bare(tmp_path / "new", "new")
    tiny.change_json(old / "1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_splade=True)
    refusal(old, "pooling_mode_splade")
    tiny.change_json(old / "1_Pooling/config.json", pooling_mode_splade="yes")
    refusal(old, "pooling_mode_splade", "yes")
    for value in ("splade", 3, None, [None]):
        tiny.change_json(new / "1_Pooling/config.json", pooling_mode=value)
        refusal(new, "1_Pooling/config.json", "not built")


def test_include_prompt(new: Path) -> None:
    assert read(new).include_prompt
    tiny.change_json(new / "1_Pooling/config.json", include_prompt=False)
    assert not read(new).include_prompt


def test_normalize_is_seen(tmp_path: Path) -> None:
    for generation in ("old", "new"):
        assert read(bare(tmp_path / f"{generation}1", generation)).has_normalize
        assert not read(bare(tmp_path / f"{generation}2", generation, normalize=False)).has_normalize


def test_maxseq_comes_from_the_generations_own_file(tmp_path: Path) -> None:
    old, new = read(bare(tmp_path / "old", "old")), read(bare(tmp_path / "new", "new"))
    assert (old.maxseq, old.maxseq_source) == (20, "sentence_bert_config.json")
    assert (new.maxseq, new.maxseq_source) == (20, "tokenizer_config.json")


@pytest.mark.parametrize("generation", ["old", "new"])
def test_maxseq_is_never_above_the_models_limit(tmp_path: Path, generation: str) -> None:
    metadata = read(bare(tmp_path, generation, maxseq=34))  # as many as there are position rows, two too many
    assert (metadata.maxseq, metadata.maxseq_source) == (32, "config.json")


def test_a_limit_of_1e30_is_none(new: Path) -> None:
    for value in (10**30, 1e30, int(1e30), None, ...):
        tiny.change_json(new / "tokenizer_config.json", model_max_length=value)
        assert read(new).maxseq == 32


def test_no_max_seq_length_falls_back_to_the_tokenizers(old: Path) -> None:
    tiny.change_json(old / "sentence_bert_config.json", max_seq_length=None)
    tiny.change_json(old / "tokenizer_config.json", model_max_length=11)
    assert (read(old).maxseq, read(old).maxseq_source) == (11, "tokenizer_config.json")


def test_legacy_name_of_the_transformers_settings(old: Path) -> None:
    (old / "sentence_bert_config.json").rename(old / "sentence_xlm-roberta_config.json")
    assert (read(old).maxseq, read(old).maxseq_source) == (20, "sentence_xlm-roberta_config.json")
    tiny.write_json(old / "sentence_bert_config.json", {})  # says nothing, so the next name is asked
    assert read(old).maxseq == 20


@pytest.mark.parametrize("value", [2, 0, -1, "20", 20.5, True])
def test_absurd_lengths_are_refused(tmp_path: Path, value: Any) -> None:
    old, new = bare(tmp_path / "old", "old"), bare(tmp_path / "new", "new")
    tiny.change_json(old / "sentence_bert_config.json", max_seq_length=value)
    refusal(old, "sentence_bert_config.json", "max_seq_length")
    tiny.change_json(new / "tokenizer_config.json", model_max_length=value)
    refusal(new, "tokenizer_config.json", "model_max_length")


def test_left_truncation_is_refused(new: Path) -> None:
    tiny.change_json(new / "tokenizer_config.json", truncation_side="left")
    refusal(new, "tokenizer_config.json", "truncation_side", "left")


def test_lowercase(old: Path) -> None:
    assert not read(old).lowercase
    tiny.change_json(old / "sentence_bert_config.json", do_lower_case=True)
    assert read(old).lowercase


def test_prompts(directory: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: ", "none": None}
    tiny.change_json(directory / "config_sentence_transformers.json", prompts=prompts, default_prompt_name="query")
    metadata = read(directory)
    assert metadata.prompts == {"query": "query: ", "passage": "passage: ", "none": ""}
    assert metadata.default_prompt_name == "query"


@pytest.mark.parametrize("prompts", [["query: "], {"query": 1}, "query: "])
def test_malformed_prompts_are_refused(directory: Path, prompts: Any) -> None:
    tiny.change_json(directory / "config_sentence_transformers.json", prompts=prompts)
    refusal(directory, "config_sentence_transformers.json", "prompts")


def test_an_unknown_default_prompt_is_refused(directory: Path) -> None:
    tiny.change_json(
        directory / "config_sentence_transformers.json", prompts={"query": "query: "}, default_prompt_name="qeury"
    )
    refusal(directory, "default_prompt_name", "qeury", "query")


@pytest.mark.parametrize(
    "kind",
    [
        "sentence_transformers.models.Dense",
        "sentence_transformers.base.modules.dense.Dense",
        "sentence_transformers.models.WeightedLayerPooling",
        "custom_model.Pooling",
        "Pooling",
    ],
)
def test_another_module_is_refused_by_name(directory: Path, kind: str) -> None:
    modules = json.loads((directory / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_More", "type": kind})
    tiny.write_json(directory / "modules.json", modules)
    refusal(directory, "modules.json", kind)


@pytest.mark.parametrize("order", [[1, 0, 2], [0, 2, 1], [0, 1, 1], [0, 0, 1], [1, 2], []])
def test_modules_in_another_order_are_refused(directory: Path, order: list[int]) -> None:
    modules = json.loads((directory / "modules.json").read_text())
    tiny.write_json(directory / "modules.json", [modules[i] for i in order])
    refusal(directory, "modules.json", "order")


def test_without_a_pooling_module_cls_is_a_guess(directory: Path) -> None:
    modules = json.loads((directory / "modules.json").read_text())
    tiny.write_json(directory / "modules.json", modules[:1])
    assert (read(directory).pooling, read(directory).pooling_source) == ("cls", None)


def test_the_encoder_in_a_folder_of_its_own(directory: Path) -> None:
    folder = directory / "0_Transformer"
    folder.mkdir()
    for name in ("config.json", "sentence_bert_config.json", "tokenizer_config.json"):
        (directory / name).rename(folder / name)
    modules = json.loads((directory / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    tiny.write_json(directory / "modules.json", modules)
    assert transformer_directory(directory) == folder
    assert read(directory).maxseq == 20
    assert read(directory).maxseq_source.startswith("0_Transformer/")


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", "C:\\x", "..\\x", 3, None])
def test_module_paths_stay_inside(directory: Path, path: Any) -> None:
    modules = json.loads((directory / "modules.json").read_text())
    modules[1]["path"] = path
    tiny.write_json(directory / "modules.json", modules)
    refusal(directory, "modules.json", "path")


@pytest.mark.parametrize("content", [{}, [1], "x", None])
def test_modules_json_that_is_no_list_of_objects(directory: Path, content: Any) -> None:
    tiny.write_json(directory / "modules.json", content)
    refusal(directory, "modules.json", "list")


def test_a_pooling_module_needs_its_settings(directory: Path) -> None:
    (directory / "1_Pooling/config.json").unlink()
    refusal(directory, "1_Pooling/config.json", "no such file")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("transformer_task", "fill-mask"),
        ("module_output_name", "sentence_embedding"),
        ("modality_config", {"text": {"method": "forward", "method_output_name": "pooler_output"}}),
        ("modality_config", {"image": {}}),
        ("modality_config", []),
        ("query_expansion", {"length": 32}),
        ("processor_kwargs", {"do_lower_case": True}),
        ("tokenizer_args", {"model_max_length": 8}),
        ("config_kwargs", {"num_hidden_layers": 1}),
        ("tokenizer_name_or_path", "other"),
    ],
)
def test_unbuilt_settings_of_the_transformer_are_refused(new: Path, key: str, value: Any) -> None:
    tiny.change_json(new / "sentence_bert_config.json", **{key: value})
    refusal(new, "sentence_bert_config.json", key)


def test_harmless_settings_of_the_transformer_are_not(new: Path) -> None:
    tiny.change_json(
        new / "sentence_bert_config.json",
        model_args={"torch_dtype": "float16"},
        config_args={"trust_remote_code": True},
        processor_kwargs={},
    )
    assert read(new).maxseq == 20


def test_normalizing_something_else_is_refused(new: Path) -> None:
    tiny.change_json(new / "2_Normalize/config.json", module_input_name="token_embeddings")
    refusal(new, "2_Normalize/config.json", "module_input_name")


def test_a_save_of_another_kind_of_model_is_refused(new: Path) -> None:
    tiny.change_json(new / "config_sentence_transformers.json", model_type="CrossEncoder")
    refusal(new, "config_sentence_transformers.json", "CrossEncoder")


@pytest.mark.parametrize(
    "name", ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"]
)
def test_a_dangling_link_is_named_and_never_taken_for_absent(directory: Path, name: str) -> None:
    (directory / name).unlink()
    (directory / name).symlink_to("gone.json")
    refusal(directory, name, "dangling", "gone.json")
