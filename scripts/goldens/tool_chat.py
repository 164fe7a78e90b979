"""Conversations with tools, rendered by apply_chat_template with the templates of published models.

Writes tests/data/chat/tools.json: the tools and the conversations, and for each template (see published_chat.py) the SHA-256 of
the text for each conversation, or of the message with which the template refuses it. Calls are as in OpenAI's API, with
their arguments as text; transformers gets these as objects, as its documentation requires.
"""

import copy
import json

import chat
from paths import DATA
from published_chat import FOLDER, TEMPLATES, sha256

OUT = DATA / "chat" / "tools.json"


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def call(call_id, name, arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    function("weather", "Weather of a place \"now\".", {
        "place": {"type": "string", "description": "A town, such as Zürich"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, ["place"]),
    function("add", "Sum of numbers", {"numbers": {"type": "array", "items": {"type": "number"}}}, ["numbers"]),
]
QUESTION = {"role": "user", "content": "Is it warmer in Zürich <now> than 20 & a half?"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [
    call("a1b2c3d4e", "weather", '{"unit": "celsius", "place": "Z\\u00fcrich \\"Altstadt\\""}')]}
SAID = {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": "weather", "content": '{"celsius": 21.5}'}
CALLED_TWICE = {"role": "assistant", "content": "", "tool_calls": [
    call("000000001", "add", '{"numbers": [1, 2.5]}'), call("000000002", "weather", "{}")]}
SAID_TWICE = [{"role": "tool", "tool_call_id": f"00000000{i}", "name": "add", "content": f"{i}.5"} for i in (1, 2)]
CONVERSATIONS = [
    [QUESTION],
    [{"role": "system", "content": "Be brief."}, QUESTION],
    [QUESTION, CALLED, SAID],
    [QUESTION, CALLED, SAID, {"role": "assistant", "content": "It is."}, {"role": "user", "content": "And the sum?"}],
    [QUESTION, CALLED_TWICE, *SAID_TWICE],
]


def with_objects(conversation):
    conversation = copy.deepcopy(conversation)
    for message in conversation:
        for each in message.get("tool_calls", []):
            each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    return conversation


def golden(source, conversation):
    rendered = chat.render_messages(source, with_objects(conversation), tools=TOOLS)
    return sha256(rendered.get("text", rendered.get("error")))


def main():
    chat.pin_time()
    published = {}
    for names in TEMPLATES.values():
        for name in names:
            source = (FOLDER / f"{name}.jinja").read_bytes().decode()
            if "tools" in source and "tool_calls" in source:
                published[name] = [golden(source, conversation) for conversation in CONVERSATIONS]
    OUT.write_text(json.dumps({"tools": TOOLS, "conversations": CONVERSATIONS, "published": published}, indent=1) + "\n",
                   encoding="ascii")
    print(f"{len(published)} templates, {len(CONVERSATIONS)} conversations")
