"""attnspec on torch."""
