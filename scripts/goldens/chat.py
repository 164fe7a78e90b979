"""Conversations rendered by transformers' apply_chat_template, which coordinator/api/chat_template.cc must match.

Writes tests/data/chat/goldens.json: templates in the style of several model families, written for this test, and that
of the shipped pair; and for each conversation the text, or the template's refusal.
"""

import datetime
import json

import jinja2
from paths import DATA, ROOT
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

OUT = DATA / "chat" / "goldens.json"
SHIPPED = json.loads((ROOT / "models" / "tiny-target" / "tokenizer_config.json").read_text())["chat_template"]

# Noon, so that it is the same day nearly everywhere.
NOW = datetime.datetime(2024, 7, 26, 12, 0, tzinfo=datetime.timezone.utc)

# Llama 3.2's style: headers, a system turn that is always present and tells the date, roles written unchanged.
HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Tools are at hand.\\n" }}
{%- endif %}
{{- "Trained up to: December 2023\\n" }}
{{- "Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- else %}
        {{- raise_exception("Tools cannot speak here.") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# ChatML's style: a block per turn, nothing trimmed.
BLOCKS = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""

# Mistral's and Gemma's style: turns that must alternate, the system message inside the first user turn.
ALTERNATING = """\
{%- if messages[0]["role"] == "system" %}
    {%- set first = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(turns=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("Turns must alternate user/assistant/user/...") }}
    {%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and first is defined %}
            {{- "[INST] " + first + "\\n\\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] | upper == "ASSISTANT" %}
        {{- " " ~ message["content"].strip() ~ eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are known, not " + message["role"]) }}
    {%- endif %}
{%- endfor %}
{#- Nothing opens the answer: it follows the closed bracket. #}
{%- if ns.turns > 4 and not loop_messages[-1].content.endswith("?") %}{{ "\\n" }}{% endif %}
"""

# Other features of templates: macros, joins, default values, conditional expressions, reversed loops, tojson.
MACROS = """\
{%- macro turn(role, words) -%}
<{{ role }}>{{ words | replace("<", "&lt;") }}</{{ role }}>
{%- endmacro -%}
{%- for message in messages -%}
{{ turn(message.role, message.content) }}{{ "\\n" if not loop.last else "" }}
{%- endfor %}
{%- set roles = messages | map(attribute="role") | list %}
{{ roles | join(", ") }} ({{ messages | length }}{{ ", " ~ missing if missing is defined else "" }}{{ other | default("!") }})
{%- for message in messages | reverse %}
{%- if message.role in ["user", "developer"] %}{{ message.content | tojson }};{% endif %}
{%- endfor %}
"""

# Gemma 3's style: contents that may be lists of parts, the system message before the first turn, roles renamed.
PARTS = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("After the system's words, user and model take turns") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif part['type'] == 'text' -%}
                {{ part['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("A content is text or a list of parts") }}
    {%- endif -%}
    {{ '</turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<turn>model\n' }}
{%- endif -%}
"""

# Python's strip methods, which handle Unicode's white space; a final newline, which is not part of a template.
STRIPPED = """\
{%- for message in messages %}
[{{ message.content.strip() }}|{{ message.content.lstrip() }}|{{ message.content.rstrip() }}|{{ message.content | trim }}]
[{{ message.content.strip("\u00e9\u4e2d\n a") }}|{{ message.content.lstrip("\n ") }}|{{ message.content.strip("") }}|{{ message.content.rstrip(none) }}]
[{% filter trim %} {{ message.content }}{% endfilter %}]
{%- endfor %}
end
"""

CONVERSATIONS = [
    [("user", "Who was here?")],
    [("system", "  You answer in verse.\n"), ("user", "Good morning!")],
    [("user", "One"), ("assistant", " Two "), ("user", "Three")],
    [("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e?")],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "no question")],
    [("user", "")],
    [("user", "\n\n  white space  \n")],
    [("user", "caf\u00e9 \u4e2d\u6587 \U0001F600 \"quoted\" <tag> & \\ {{ braces }} {% percent %}")],
    [("user", "special <|eot_id|> written out")],
    [("user", "one"), ("user", "two")],
    [("assistant", "I begin.")],
    [("tool", "42")],
    [("developer", "Be brief."), ("user", "Why?")],
    [("user", "line one\r\nline two\ttabbed")],
    [("user", "  \u00a0\u3000ends \u2003of \u200bUnicode\u200b\u2028\x85\x1c\n")],
    [("user", "e\u0301 \u0130 \u4e2d \U0001F469\u200d\U0001F680 'quoted'\x0b\x0c")],
    [("system", ""), ("user", "Is there a system?")],
    [("system", "Only words of the system.")],
    [("system", "S"), ("user", "")],
    [("user", "a"), ("assistant", ""), ("user", "b")],
    [("user", "a"), ("assistant", "The answer is the last turn.")],
    [("user", "a"), ("system", "In the middle."), ("user", "b")],
    [("user", "a"), ("assistant", "b"), ("system", "Late."), ("user", "c")],
    [("user", "a"), ("tool", "42"), ("assistant", "b")],
    [("user", "a"), ("assistant", "<think>\nHm.\n</think>\n\nb"), ("user", "c")],
    [("user", "a"), ("assistant", "<think>Hm.</think>b")],
    [("user", "<tool_response>a</tool_response>"), ("assistant", "b"), ("user", "<tool_response>c</tool_response>")],
    [("user", "<|im_end|></s>[/INST]<end_of_turn>")],
    [("User", "A role in capitals.")],
    [("user", "\u00e9x " * 200 + "\n")],
]

TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
TOKENIZER = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "models" / "tiny-target" / "tokenizer.json"), **TOKENS)


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW.astimezone(tz) if tz else NOW.replace(tzinfo=None)


def render(template, conversation):
    return render_messages(template, [{"role": role, "content": content} for role, content in conversation])


def render_messages(template, messages, tools=None):
    """The text, or the message with which the template refuses the conversation."""
    try:
        return {"text": TOKENIZER.apply_chat_template(messages, tools=tools, chat_template=template,
                                                      add_generation_prompt=True, tokenize=False)}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}


def pin_time():
    chat_template_utils.datetime = FixedTime


def main():
    pin_time()
    templates = {"headers": HEADERS, "blocks": BLOCKS, "alternating": ALTERNATING, "macros": MACROS, "parts": PARTS,
                 "stripped": STRIPPED, "shipped": SHIPPED}
    goldens = {"now": int(NOW.timestamp()), "special_tokens": TOKENS, "conversations": CONVERSATIONS,
               "templates": {name: {"source": source, "goldens": [render(source, c) for c in CONVERSATIONS]}
                             for name, source in templates.items()}}
    OUT.write_text(json.dumps(goldens, indent=1) + "\n", encoding="ascii")
    for name, template in goldens["templates"].items():
        refused = sum("error" in golden for golden in template["goldens"])
        print(f"{name}: {len(template['goldens'])} conversations, {refused} refused")
