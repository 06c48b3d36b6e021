"""A conversation whose KV cache and token ids are kept from turn to turn.

Run it: python examples/chat.py [MAX_TOKENS]; it asks three prepared questions. Your own come from a pipe, one a line:
echo "Who are you?" | python examples/chat.py
"""

import sys

from slipstream import Conversation, Engine

MAX_TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
PREPARED = ["Name three animals.", "Which of them is the largest?", "Write one sentence about it."]

questions = PREPARED if sys.stdin.isatty() else [line.strip() for line in sys.stdin if line.strip()] or PREPARED

with Engine.load("smollm2-135m", draft="suffix", fetch=True) as engine:
    conversation = Conversation(engine, system="You are brief.", seed=7)
    for question in questions:
        print(f"> {question}")
        answer = conversation.ask(question, max_tokens=MAX_TOKENS)
        for token in answer:
            print(token.text, end="", flush=True)
        timings = answer.completion.timings
        print(f"\n[{timings.cache_n} tokens remembered, {timings.prompt_n} read, {timings.predicted_n} written]\n")
        if conversation.notice:  # old turns had to go because the context is full
            print(conversation.notice)
