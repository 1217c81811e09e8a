"""What a row's error says where the step that held it alone raised."""

from __future__ import annotations

from sparkinfer.errors import EmptyPrompt, InferenceFailed, OutOfMemory

#: How torch says it: of a GPU with a class of its own or by cuBLAS and cuDNN, of a CPU in the text of a RuntimeError alone.
_SAYS_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")


def row_error(error: Exception) -> tuple[str, str]:
    """Code and sentence."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError | OutOfMemory) or any(words in text.lower() for words in _SAYS_MEMORY):
        return (
            OutOfMemory.code,
            f"The device had no memory for this row even alone ({text}); lower the engine setting kv_fraction.",
        )
    return InferenceFailed.code, f"The engine raised {text} on this row even alone."


def no_token_error() -> tuple[str, str]:
    """Code and sentence for a prompt that the text layer should not have let through."""
    return EmptyPrompt.code, "The prompt has no token, so that there is nothing to go on from."
