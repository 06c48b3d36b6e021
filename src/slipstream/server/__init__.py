"""`slipstream serve`: an engine behind an OpenAI-compatible API, and a web page that shows what speculation does."""
