"""The server: llama-server's wire format and OpenAI's completions, exact to the last id.

`protocol` and what it gathers are pure: requests in, answers out, no HTTP, no torch. `scheduler` owns the
engine; `app` speaks HTTP. Starlette and uvicorn (the extra `serve`) are loaded only by `app` and `running`.
`audit` is the other side: a client that counts what any such server delivers.
"""
