"""tinylm trains small decoder-only language models straight on UTF-8 bytes."""
