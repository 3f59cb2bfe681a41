"""Tokenizers from a model's files."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from longproof.domain.request import Route
from longproof.errors import ModelFileError
from longproof.gateway.gguf_fields import tokenizer_fields
from longproof.gateway.local_count import LocalCount
from longproof.gateway.model_tokenizer import load_model_tokenizer
from longproof.gateway.text_memory import TextMemory
from longproof.testing.fake_tokenizer import render_chat, tokenizer
from longproof.testing.tokenizer_files import write_tokenizer_files


def _words(directory: Path, **changes: Any) -> Path:
    """A directory with a tokenizer of three words."""
    made: Any = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "?": 4}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    for name, value in changes.items():
        setattr(made, name, value)
    directory.mkdir(exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def exact_files(tmp_path_factory: pytest.TempPathFactory) -> LocalCount:
    files = write_tokenizer_files(tmp_path_factory.mktemp("exact"), exact=True)
    return LocalCount(load_model_tokenizer(files), TextMemory())


def test_ids_are_the_engines_when_files_are_its_own(tmp_path: Path) -> None:
    model = load_model_tokenizer(write_tokenizer_files(tmp_path / "m"))
    local = LocalCount(model, TextMemory())
    messages = [{"role": "user", "content": "How deep is the lake, 12 or 13?"}]
    (found,) = local.ids(Route.CHAT, {"messages": messages})
    assert found.tolist() == tokenizer().encode(render_chat([("user", messages[0]["content"])]))
    assert model.name == "tokenizer.json of m"


@given(text=st.text(alphabet="abcXY 019.!{\n\t\x00\u00ad\u00ff\u00e9\u4e2d\U0001f389", max_size=40))
def test_ids_are_the_engines_of_any_text_when_files_are_exact(text: str, exact_files: LocalCount) -> None:
    (found,) = exact_files.ids(Route.COMPLETIONS, {"prompt": text})
    assert found.tolist() == tokenizer().encode(text)


def test_special_tokens_go_around_a_text_when_the_post_processor_says_so(tmp_path: Path) -> None:
    around = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    model = load_model_tokenizer(_words(tmp_path, post_processor=around))
    assert (model.before, model.after) == ((0,), (1,))
    (found,) = LocalCount(model, TextMemory()).ids(Route.COMPLETIONS, {"prompt": "a b"})
    assert found.tolist() == [0, 2, 3, 1]


@pytest.mark.parametrize(
    ("normalizer", "expansion"),
    [(None, 1), (normalizers.NFC(), 3), (normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), 11)],
)
def test_a_text_may_grow_when_it_is_normalized(normalizer: Any, expansion: int, tmp_path: Path) -> None:
    changes = {} if normalizer is None else {"normalizer": normalizer}
    model = load_model_tokenizer(_words(tmp_path, **changes))
    assert model.expansion == expansion
    local = LocalCount(model, TextMemory())
    assert local.expansion(b'{"prompt": "plain"}') == 1
    assert local.expansion('{"prompt": "é"}'.encode()) == expansion
    assert local.expansion(b'{"prompt": "\\u00e9"}') == expansion


def test_the_template_is_found_when_it_stands_in_a_file_or_in_the_settings(tmp_path: Path) -> None:
    directory = _words(tmp_path)
    assert load_model_tokenizer(directory).template is None
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "b {{ bos_token }}"}]
    settings = {"chat_template": named, "bos_token": {"content": "<s>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    template = load_model_tokenizer(directory).template
    assert template is not None
    assert template.render({"messages": []}) == "b <s>"
    (directory / "chat_template.jinja").write_text("a")
    template = load_model_tokenizer(directory / "tokenizer.json").template
    assert template is not None
    assert template.render({"messages": []}) == "a"


def test_what_is_missing_or_broken_is_told_when_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="not a tokenizer that can be read"):
        load_model_tokenizer(tmp_path)
    (_words(tmp_path) / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_model_tokenizer(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match="not a usable GGUF"):
        load_model_tokenizer(tmp_path / "x.gguf")


def _gguf(path: Path, *, pre: str, model: str = "gpt2", bos: bool | None = None) -> Path:
    """A file with a byte-level vocabulary: every byte, and "ab"."""
    import gguf

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "</s>", *alphabet, "ab", "<user>"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *[1] * len(alphabet), 1, 4])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if bos is not None:
        writer.add_add_bos_token(bos)
    writer.add_chat_template("{{ bos_token }}{% for m in messages %}<user>{{ m.content }}{% endfor %}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_is_rebuilt_when_its_pre_tokenizer_is_known(tmp_path: Path) -> None:
    model = load_model_tokenizer(_gguf(tmp_path / "m.gguf", pre="smollm"))
    local = LocalCount(model, TextMemory())
    (found,) = local.ids(Route.COMPLETIONS, {"prompt": "<user>abab 12"})
    named = [model.tokenizer.id_to_token(token) for token in found]
    assert named == ["<user>", "ab", "ab", "Ġ", "1", "2"]
    assert (model.before, model.chat_bos) == ((), None)


def test_one_bos_stands_in_front_when_the_file_adds_it_and_the_template_writes_it(tmp_path: Path) -> None:
    model = load_model_tokenizer(_gguf(tmp_path / "m.gguf", pre="gpt-2", bos=True))
    local = LocalCount(model, TextMemory())
    (chat,) = local.ids(Route.CHAT, {"messages": [{"role": "user", "content": "ab"}]})
    assert [model.tokenizer.id_to_token(token) for token in chat] == ["<s>", "<user>", "ab"]
    (text,) = local.ids(Route.COMPLETIONS, {"prompt": "ab"})
    assert text.tolist()[0] == 0
    assert len(text) == 2


@pytest.mark.parametrize(("pre", "model"), [("unheard-of", "gpt2"), ("default", "llama")])
def test_a_gguf_is_refused_by_name_when_its_tokenizer_is_not_known(pre: str, model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=pre):
        load_model_tokenizer(_gguf(tmp_path / "m.gguf", pre=pre, model=model))


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", pre="smollm").read_bytes()


def test_fields_are_what_the_reference_reader_reads(gguf_bytes: bytes, tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes)
    reader: Any = gguf.GGUFReader(str(path))
    wanted = {key: field.contents() for key, field in reader.fields.items() if key.startswith("tokenizer.")}
    assert tokenizer_fields(path) == wanted


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 400), replacement=st.binary(min_size=1, max_size=9), length=st.integers(0, 6000))
def test_a_damaged_file_is_refused_or_read_and_nothing_else(
    place: int, replacement: bytes, length: int, gguf_bytes: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes((gguf_bytes[:place] + replacement + gguf_bytes[place + len(replacement) :])[:length])
    with contextlib.suppress(ModelFileError):
        load_model_tokenizer(path)
