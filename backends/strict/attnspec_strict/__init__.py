"""attnspec on strict."""
