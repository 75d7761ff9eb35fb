"""Chat templates that use tools, in the forms that models come with."""

CALLS = "{% for call in m.tool_calls %}{% set f = call.function %}"
TURN = "<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
)


def template(calls: str, *, tools: str = TOOLS) -> str:
    return (
        f"{tools}{{% for m in messages %}}{TURN}{calls}<|im_end|>\n{{% endfor %}}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


HERMES_TEXT = template(
    CALLS + '<tool_call>\n{"name": "{{ f.name }}", "arguments": '
    "{{ f.arguments if f.arguments is string else f.arguments | tojson }}}\n</tool_call>{% endfor %}"
)
HERMES_MAPPING = template(
    CALLS + '<tool_call>{"arguments": {{ f.arguments | tojson }}, "name": "{{ f.name }}"}</tool_call>{% endfor %}'
)
LLAMA = template(
    "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% endif %}',
    tools="{% if not tools is defined %}{% set tools = none %}{% endif %}" + TOOLS,
)
XML = template(
    CALLS + "<tool_call><function={{ f.name }}>{% for k, v in f.arguments.items() %}<parameter={{ k }}>{{ v }}"
    "</parameter>{% endfor %}</function></tool_call>{% endfor %}"
)
ARRAY = template(CALLS + '[TOOL_CALLS][{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]{% endfor %}')
NULL_CONTENT = (
    "{{ tools }}{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    '{{ \'<tool_call>{"name": "\' + m.tool_calls[0].function.name + \'", "arguments": \' '
    "+ m.tool_calls[0].function.arguments + '}</tool_call>' }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
NO_RESULTS = template("").replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")
REFUSING = "{{ tools }}{{ raise_exception('roles must alternate') }}"
