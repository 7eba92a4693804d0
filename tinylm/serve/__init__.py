"""A model over HTTP: the server, its wire format and page, and the audit of any such server."""
