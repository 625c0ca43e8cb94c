"""Pictures, drawn with matplotlib but without its global state."""
