"""Chat templates: the texts that transformers gives, the files they are read from, and what they may not do."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="the extra serve")

from foreshape.apps.tokenization.chat_template import ChatTemplate, read_chat_template
from foreshape.errors import FeedError, FormatError

MESSAGES = [{"role": "system", "content": "be <short>"}, {"role": "user", "content": "hi"}]
CHATML = """{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def rendered(source: str, messages: Any = MESSAGES, prompt: bool = True, **words: str) -> str:
    return ChatTemplate(source, words).render(messages, prompt)


def test_messages_become_the_text_of_the_template() -> None:
    text = "<|im_start|>system\nbe <short><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert rendered(CHATML) == text + "<|im_start|>assistant\n"
    assert rendered(CHATML, prompt=False) == text


def test_functions_filters_and_tags_are_those_of_transformers() -> None:
    assert rendered("{{ bos_token }}{{ eos_token }}{{ pad_token }}", bos_token="<s>", eos_token="</s>") == "<s></s>"
    assert rendered("{{ messages[0].content | tojson }}{{ 'é' | tojson }}{{ {'a': [1]} | tojson(indent=1) }}") == '"be <short>""é"{\n "a": [\n  1\n ]\n}'
    assert rendered("{{ strftime_now('%Y') }}") == datetime.now().strftime("%Y")
    assert rendered("{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}") == "system"
    assert rendered("a{% generation %}{{ messages[1].content }}{% endgeneration %}b") == "ahib"
    assert rendered("{% if tools is none and documents is none %}x{% endif %}") == "x"
    with pytest.raises(FeedError, match="the chat template refuses the messages: no system"):
        rendered("{{ raise_exception('no system') }}")


def test_developers_are_the_system_where_the_template_does_not_know_them() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert rendered("{{ messages[0].role }}", messages) == "system"
    assert rendered("{% if messages[0].role == 'developer' %}d{% endif %}", messages) == "d"
    assert messages[0]["role"] == "developer"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['sys'] }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ 1 // 0 }}",
        "{{ messages[9].content.x.y }}",
    ],
)
def test_a_template_reaches_nothing_but_the_messages(source: str) -> None:
    with contextlib.suppress(FeedError):
        assert rendered(source) == ""


@pytest.mark.parametrize("source", ["{% if %}", "{{", "{% unknown %}", "{{ x | nothing }}", "a" * ((1 << 20) + 1), "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}"])
def test_a_damaged_template_is_refused(source: str) -> None:
    with pytest.raises(FormatError, match=r"chat_template\.jinja"):
        ChatTemplate(source, {})


def test_templates_are_read_from_their_files(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"

    def read(**fields: Any) -> str | None:
        config.write_text(json.dumps(fields))
        template = read_chat_template(tmp_path)
        return None if template is None else template.render(MESSAGES)

    assert read() is None and read(chat_template=[]) is None
    words: dict[str, Any] = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": None}
    assert read(chat_template="{{ bos_token }}{{ eos_token }}{{ unk_token }}", **words) == "<s></s>"
    assert read(chat_template=[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]) == "d"
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<b>", "pad_token": "<p>"}')
    assert read(chat_template="{{ bos_token }}{{ pad_token }}", bos_token=None) == "<b><p>"
    for wrong in (3, {"a": 1}, [{"name": "default", "template": 3}]):
        with pytest.raises(FormatError, match="chat_template must be a text"):
            read(chat_template=wrong)
    (tmp_path / "chat_template.jinja").write_text("file{{ pad_token }}")
    assert read(chat_template="config") == "file<p>"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(FormatError, match=r"chat_template\.jinja"):
        read()
