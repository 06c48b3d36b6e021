"""The OpenAI-compatible server and its web page; needs the extra `[server]`."""
