"""Models out of tinylm and back: Hugging Face folders, and GGUF for llama.cpp."""
