"""safetensors files: in place, bit for bit, single, in shards, through links. Damaged ones: test_hostile_files.py."""

from __future__ import annotations

import errno
import gc
import json
import mmap
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import tiny

from embed.checkpoint import Checkpoint, _whole_pages
from embed.errors import ModelError


def refusal(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Checkpoint.open(directory)
    assert str(directory) in str(caught.value)
    return str(caught.value)


def test_tensors_are_the_files_own_bytes(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    dtypes = ("F32", "F16", "BF16")
    tiny.write_safetensors(tmp_path / "model.safetensors", {dtype: tiny.encoded(values, dtype) for dtype in dtypes})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert sorted(checkpoint.names) == sorted(dtypes)
        assert [checkpoint.dtype_of(dtype) for dtype in dtypes] == list(dtypes)
        assert checkpoint.shape_of("BF16") == (5, 3)
        f32, f16, bf16 = (checkpoint.tensor(dtype) for dtype in dtypes)
    assert (f32.dtype, f16.dtype, bf16.dtype) == (np.float32, np.float16, np.uint16)
    np.testing.assert_array_equal(f32, values)
    np.testing.assert_array_equal(f16, values.astype(np.float16))
    np.testing.assert_array_equal(bf16, tiny.to_bf16(values))


def test_a_tensor_is_a_view_into_the_map(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path)
    with Checkpoint.open(tmp_path) as checkpoint:
        name = "embeddings.word_embeddings.weight"
        first, second = checkpoint.tensor(name), checkpoint.tensor(name)
    assert np.shares_memory(first, second)
    assert not first.flags.writeable


def test_tensors_outlive_the_checkpoint_and_the_file(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    word = checkpoint.tensor("embeddings.word_embeddings.weight")
    before = word.copy()
    checkpoint.close()
    checkpoint.close()
    del checkpoint
    gc.collect()
    (tmp_path / "model.safetensors").unlink()
    np.testing.assert_array_equal(word, before)


def test_the_map_goes_with_the_last_tensor(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path)

    def mapped() -> bool:
        return str(tmp_path / "model.safetensors") in Path("/proc/self/maps").read_text()

    with Checkpoint.open(tmp_path) as checkpoint:
        word = checkpoint.tensor("embeddings.word_embeddings.weight")
    assert mapped()
    del word
    gc.collect()
    assert not mapped()


def test_unaligned_tensors_are_copied(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    tensors = {"odd": ("U8", (1,), b"x"), "a": tiny.encoded(values, "F32"), "b": tiny.encoded(values, "F16")}
    tiny.write_safetensors(tmp_path / "model.safetensors", tensors)
    with Checkpoint.open(tmp_path) as checkpoint:
        for name in ("a", "b"):
            assert checkpoint.tensor(name).flags.aligned
            np.testing.assert_array_equal(checkpoint.tensor(name), values)


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    tensors = {"none": ("F32", (0, 3), b""), "one": ("F32", (), np.float32(2.5).tobytes()), "end": ("F32", (0,), b"")}
    tiny.write_safetensors(tmp_path / "model.safetensors", tensors)
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.tensor("none").shape == (0, 3)
        assert checkpoint.tensor("one") == np.float32(2.5)
        assert checkpoint.tensor("end").size == 0


def test_other_dtypes_are_listed_and_refused(tmp_path: Path) -> None:
    tensors = {"ids": ("I64", (2,), bytes(16)), "f8": ("F8_E4M3", (4,), bytes(4))}
    tiny.write_safetensors(tmp_path / "model.safetensors", tensors)
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.dtype_of("ids") == "I64"
        with pytest.raises(ModelError, match=r'model\.safetensors: tensor "f8" is F8_E4M3; F32, F16, BF16 are read'):
            checkpoint.tensor("f8")
        with pytest.raises(ModelError, match='there is no tensor "nope"'):
            checkpoint.tensor("nope")


def test_release_gives_pages_back_and_keeps_tensors_valid(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(4, 1 << 20)).astype(np.float32)  # 16 MB
    tensors = {str(i): tiny.encoded(row, "F32") for i, row in enumerate(values)}
    tiny.write_safetensors(tmp_path / "model.safetensors", tensors)

    def resident_bytes() -> int:
        lines = Path("/proc/self/smaps").read_text().split("\n")
        at = next(i for i, line in enumerate(lines) if line.endswith(str(tmp_path / "model.safetensors")))
        return 1024 * next(int(line.split()[1]) for line in lines[at:] if line.startswith("Rss:"))

    with Checkpoint.open(tmp_path) as checkpoint:
        read = [checkpoint.tensor(name) for name in "0123"]
        sums = [float(tensor.sum()) for tensor in read]
        before = resident_bytes()
        checkpoint.release(["1", "2", "0"])
        assert before - resident_bytes() >= 3 * values[0].nbytes - 2 * mmap.PAGESIZE
        assert [float(tensor.sum()) for tensor in read] == sums


def test_release_leaves_a_neighbours_pages_alone(tmp_path: Path) -> None:
    tiny.write_safetensors(tmp_path / "model.safetensors", {name: ("F32", (8,), bytes(32)) for name in "ab"})
    with Checkpoint.open(tmp_path) as checkpoint:
        checkpoint.release(["a"])  # less than a page: nothing to give back, and nothing to fail
        assert not checkpoint.tensor("a").any()


def test_whole_pages_of_touching_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "PAGESIZE", 4)
    assert list(_whole_pages([(1, 6), (6, 13), (14, 19)])) == [(4, 8)]
    assert list(_whole_pages([(0, 4), (8, 12), (13, 15)])) == [(0, 4), (8, 4)]


def test_where_mapping_fails_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.make("xlmr", tmp_path)
    with Checkpoint.open(tmp_path) as checkpoint:
        expected = {name: checkpoint.tensor(name).copy() for name in checkpoint.names}

    def refuse(*args: Any, **options: Any) -> NoReturn:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with Checkpoint.open(tmp_path) as checkpoint:
        for name, tensor in expected.items():
            np.testing.assert_array_equal(checkpoint.tensor(name), tensor)
        checkpoint.release(checkpoint.names)
        np.testing.assert_array_equal(checkpoint.tensor(name), tensor)


def test_the_single_file_wins_over_a_stale_index(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path)
    weight_map = {"embeddings.word_embeddings.weight": "model-00001-of-00002.safetensors"}
    tiny.write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.files == [(tmp_path / "model.safetensors", (tmp_path / "model.safetensors").stat().st_size)]


def test_shards_are_the_index_s_and_no_others(tmp_path: Path) -> None:
    single = tiny.make("xlmr", tmp_path / "single")
    sharded = tiny.make("xlmr", tmp_path / "sharded", shards=3)
    stray = {"embeddings.word_embeddings.weight": tiny.encoded(np.zeros((2, 2), np.float32), "F32")}
    tiny.write_safetensors(sharded / "adapter.safetensors", stray)
    with Checkpoint.open(single) as one, Checkpoint.open(sharded) as three:
        assert len(three.files) == 3
        assert sorted(one.names) == sorted(three.names)
        for name in one.names:
            np.testing.assert_array_equal(one.tensor(name), three.tensor(name))


def test_a_tensor_comes_from_the_shard_that_the_index_gives(tmp_path: Path) -> None:
    for i in (1, 2):
        tensor = tiny.encoded(np.full(2, i, np.float32), "F32")
        tiny.write_safetensors(tmp_path / f"{i}.safetensors", {"x": tensor, f"only{i}": tensor})
    weight_map = {"x": "2.safetensors", "only1": "1.safetensors"}
    tiny.write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert sorted(checkpoint.names) == ["only1", "x"]
        assert checkpoint.tensor("x")[0] == 2
        assert checkpoint.file_of("x").name == "2.safetensors"


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/tmp/x.safetensors", "a/../../x", "..\\x", "\0", 3])
def test_an_index_stays_inside_of_the_directory(tmp_path: Path, name: Any) -> None:
    tiny.write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"x": name}})
    assert "weight_map" in refusal(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}, []])
def test_an_index_without_a_map(tmp_path: Path, index: Any) -> None:
    tiny.write_json(tmp_path / "model.safetensors.index.json", index)
    assert "model.safetensors.index.json" in refusal(tmp_path)


def test_a_shard_or_its_tensor_that_is_missing(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path, shards=2)
    first = tmp_path / "model-00001-of-00002.safetensors"
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["absent.weight"] = first.name
    tiny.write_json(tmp_path / "model.safetensors.index.json", index)
    message = refusal(tmp_path)
    assert first.name in message
    assert "absent.weight" in message
    first.unlink()
    assert f"{first}: there is no such file" in refusal(tmp_path)


def test_a_pickle_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    message = refusal(tmp_path)
    assert "pytorch_model.bin" in message
    assert "save_pretrained" in message


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "adapter.safetensors").write_bytes(b"x")
    assert "neither model.safetensors nor" in refusal(tmp_path)


def test_dangling_links_are_named(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path, shards=2)
    (tmp_path / "model.safetensors").symlink_to("../../blobs/0123")  # it is there, so the shards don't count
    message = refusal(tmp_path)
    assert "dangling" in message
    assert "../../blobs/0123" in message


def test_links_are_followed(tmp_path: Path) -> None:
    tiny.make("xlmr", tmp_path / "real")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/model.safetensors").symlink_to(tmp_path / "real/model.safetensors")
    with Checkpoint.open(tmp_path / "linked") as checkpoint:
        assert "embeddings.word_embeddings.weight" in checkpoint
