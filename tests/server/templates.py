"""Chat templates of our own that write tools the way the families do."""

from slipstream.models import ChatTemplate

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content + '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""SmolLM2's: no tools, and content has to be text."""
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
HERMES = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>"
    'Write <tool_call>{\\"name\\": ..., \\"arguments\\": ...}</tool_call>\n{% endif %}'
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "{% endfor %}"
)
LLAMA = (
    "<|start_header_id|>{% if tools %}"
    '{{ \'Respond as {"name": function name, "parameters": dictionary}. \' }}{{ tools | tojson }}{% endif %}'
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}"
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "[TOOL_CALLS][{{ c.function | tojson }}]{{ c.id }}{% endfor %}"
    "{% if m.tool_call_id %}[TOOL_RESULTS]{{ m.tool_call_id }}{% endif %}{{ m.content }}{% endfor %}"
)
MISTRAL_HEADED = MISTRAL.replace("[{{ c.function | tojson }}]", "{{ c.function.name }}[ARGS]{{ c.function.arguments }}")
XML = "{% for t in tools %}{{ t }}{% endfor %}<tool_call><function=name></tool_call>{{ messages[0].content }}"
"""Qwen 3 Coder's: another way within the same tags."""
TEMPLATES = {
    name: ChatTemplate(source)
    for name, source in {
        "described": PLAIN,
        "hermes": HERMES,
        "llama": LLAMA,
        "mistral": MISTRAL,
        "mistral headed": MISTRAL_HEADED,
    }.items()
}
