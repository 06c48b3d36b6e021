"""The server that speaks OpenAI's API. Needs the extra `server`."""
