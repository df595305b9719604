"""attnspec on numpy."""
